use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
};

use serde::Serialize;

use crate::{
    ReportError,
    adapter::AdapterHistory,
    answers::{Answered, answers},
    events::{Begin, End, Passes},
    settings::Settings,
};

const EVENTS: &str = "events.jsonl";
const CONFIG: &str = "config.resolved.yaml";

/// The history of a run from its directory, without iterations that were repeated later.
#[derive(Debug, Default)]
pub struct RunHistory {
    /// The directory's name.
    pub(crate) name: String,
    /// In the order of the configuration, then of their appearance.
    pub(crate) adapters: Vec<AdapterHistory>,
    pub(crate) indices: HashMap<String, usize>,
    /// Names of metrics that steps have besides loss and gradient norm.
    pub(crate) metrics: Vec<String>,
    pub(crate) iterations: Vec<IterationRow>,
    pub(crate) run_events: Vec<RunEvent>,
    pub(crate) warnings: Vec<String>,
    /// Seconds of training and the iteration of each checkpoint.
    pub(crate) checkpoints: Vec<(f64, u64)>,
    /// Passes of the last measured iterations.
    pub(crate) passes: Vec<Passes>,
    /// The first and the last beginning of the run, if it was resumed.
    pub(crate) begun: Option<Begin>,
    pub(crate) resumed: Option<Begin>,
    pub(crate) resumes: usize,
    pub(crate) end: Option<End>,
    /// The log at the position of the last read, and its incomplete last line.
    log: Option<BufReader<File>>,
    pending: Vec<u8>,
    /// Number of lines of the log, and of those that could not be read.
    pub(crate) lines: usize,
    pub(crate) unread: usize,
    /// Answers of adapters before and after training, by name.
    pub(crate) answers: BTreeMap<String, Vec<Answered>>,
    /// Text of the configuration.
    pub(crate) config: String,
    pub(crate) settings: Settings,
    /// Seconds of all iterations so far, including repeated ones.
    pub(crate) clock: f64,
    pub(crate) iteration: u64,
    /// Seconds of training at each start of the run, with the wall-clock time in seconds since 1970.
    pub(crate) begins: Vec<(f64, f64)>,
    /// Adapters whose last steps have no time yet.
    pub(crate) untimed: Vec<usize>,
}

/// An iteration of the final history.
#[derive(Debug, Clone)]
pub(crate) struct IterationRow {
    pub(crate) iteration: u64,
    /// Of this iteration.
    pub(crate) tokens: u64,
    /// Seconds of training until its end.
    pub(crate) clock: f64,
    pub(crate) tokens_per_second: f64,
    pub(crate) bubble_ratio: f64,
    pub(crate) transfer_seconds: f64,
    pub(crate) transfer_overlap: f64,
    pub(crate) bytes_reserved: f64,
    pub(crate) bytes_predicted: f64,
}

/// A decision of the scheduler, or another event that affects the run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunEvent {
    /// The event's name.
    pub(crate) event: &'static str,
    /// Seconds of training before it.
    pub(crate) seconds: f64,
    /// The last iteration before it.
    pub(crate) iteration: u64,
    /// Index of its adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) adapter: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<u64>,
    /// The reason, in the run's words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    /// Adapters of each group from here on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) groups: Vec<Vec<usize>>,
}

impl RunHistory {
    /// Reads the directory of a run or a server, which may still be active.
    ///
    /// # Errors
    /// If it has no events, or they cannot be read. Other missing or damaged files are skipped.
    pub fn read(directory: &Path) -> Result<Self, ReportError> {
        let path = directory.join(EVENTS);
        if !path.is_file() {
            let path = directory.to_owned();
            return Err(ReportError::NoEvents { path });
        }
        let full = fs::canonicalize(directory);
        let full = full.unwrap_or_else(|_| directory.to_owned());
        let name = full.file_name().unwrap_or(full.as_os_str());
        let mut history = Self {
            name: name.to_string_lossy().into_owned(),
            config: fs::read_to_string(directory.join(CONFIG)).unwrap_or_default(),
            answers: answers(directory),
            ..Self::default()
        };
        history.settings = Settings::of_yaml(&history.config);
        let names: Vec<String> = history.settings.adapters().map(str::to_owned).collect();
        for name in names {
            history.adapter(&name);
        }
        let file = File::open(&path).map_err(|source| ReportError::Read { path, source })?;
        history.log = Some(BufReader::new(file));
        history.update()?;
        Ok(history)
    }

    /// Reads new lines of the log. Returns whether there were any.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn update(&mut self) -> Result<bool, ReportError> {
        let before = self.lines;
        let Some(mut log) = self.log.take() else {
            return Ok(false);
        };
        let path = EVENTS.into();
        let read = |source| ReportError::Read { path, source };
        let mut line = std::mem::take(&mut self.pending);
        let ended = loop {
            match log.read_until(b'\n', &mut line) {
                Ok(0) => break Ok(()),
                Ok(_) if line.ends_with(b"\n") => {
                    self.line(&line);
                    line.clear();
                }
                // The line is being written.
                Ok(_) => {}
                Err(source) => break Err(read(source)),
            }
        };
        self.pending = line;
        self.log = Some(log);
        ended.map(|()| self.lines > before)
    }

    /// Number of lines of the log, and of those that could not be read.
    pub fn lines(&self) -> (usize, usize) {
        (self.lines, self.unread)
    }

    /// Adds a server's task, which its configuration does not name, with its state in the queue.
    pub fn add_task(&mut self, config: &loraloom_config::RunConfig, state: &str) {
        self.settings.add(config);
        for adapter in &config.adapters {
            let index = self.adapter(&adapter.name);
            self.adapters[index].set_queue_state(state);
        }
    }

    /// Number of adapters.
    pub fn adapters(&self) -> usize {
        self.adapters.len()
    }

    /// True if the run has ended.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// The wall-clock time after `seconds` of training, in seconds since 1970, without pauses between iterations.
    pub(crate) fn wall_time(&self, seconds: f64) -> f64 {
        let mut begins = self.begins.iter().rev();
        let last = begins
            .find(|(clock, _)| *clock < seconds)
            .or(self.begins.first());
        last.map_or(seconds, |(clock, time)| time + seconds - clock)
    }
}

/// Drops the last elements that match a predicate.
pub(crate) fn drop_last<T>(rows: &mut Vec<T>, is_of_it: impl Fn(&T) -> bool) {
    while rows.last().is_some_and(&is_of_it) {
        rows.pop();
    }
}
