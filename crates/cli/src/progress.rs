//! Progress of a run: bars if stderr is a terminal, plain lines otherwise.

mod line;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use loraloom_trainer::{Event, Pace};

use self::line::{LastPlainLine, Line, left, plain, time_left};
use crate::{
    frame::{self, Row, Size},
    printer::{self, Printer},
};

/// Seconds after which a computation that holds up training is told of.
const LONG_REFERENCE: f64 = 5.0;

/// Shortest time between frames.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);
/// With more adapters, lines summarise all of them; `events.jsonl` has each.
const MANY: usize = 16;
const TOTAL_NAME: &str = "all";

/// Shows the events of a run.
#[derive(Debug)]
pub(crate) struct Progress<'a> {
    printer: &'a Printer,
    adapters: BTreeMap<String, Line>,
    /// Adapters that took a step in the current iteration; its end has their duration.
    stepped: Vec<String>,
    /// Number of known adapters.
    known: usize,
    /// Number of ended adapters, and the steps they took.
    ended: (usize, usize),
    /// Names of those that failed.
    failed: BTreeSet<String>,
    /// Steps taken, and total steps, of adapters that are not admitted yet.
    to_come: (usize, usize),
    began: Instant,
    pace: Pace,
    tokens_per_second: f64,
    last_plain: LastPlainLine,
    /// A single bar draws all lines, so that they change together.
    bar: Option<ProgressBar>,
    last_frame: Option<LastFrame>,
    spinner: Option<ProgressBar>,
}

/// The last frame that was drawn.
#[derive(Debug, Clone, Copy)]
struct LastFrame {
    at: Instant,
    columns: usize,
    lines: usize,
}

impl<'a> Progress<'a> {
    /// Shows nothing until the first event. `adapters` has the steps that each adapter has taken, and its total; it
    /// is empty if tasks come and go.
    pub(crate) fn new(printer: &'a Printer, adapters: &[(usize, usize)]) -> Self {
        let taken = adapters.iter().map(|(taken, _)| taken).sum();
        let total = adapters.iter().map(|(_, total)| total).sum();
        Self {
            printer,
            adapters: BTreeMap::new(),
            stepped: Vec::new(),
            known: adapters.len(),
            ended: (0, 0),
            failed: BTreeSet::new(),
            to_come: (taken, total),
            began: Instant::now(),
            pace: Pace::default(),
            tokens_per_second: 0.0,
            last_plain: LastPlainLine::default(),
            bar: None,
            last_frame: None,
            spinner: None,
        }
    }

    /// Shows the effect of an event.
    pub(crate) fn show(&mut self, event: &Event) {
        if self.bar.is_some()
            && let Some(spinner) = self.spinner.take()
        {
            spinner.finish_and_clear();
        }
        self.show_at(event, Instant::now());
    }

    fn show_at(&mut self, event: &Event, now: Instant) {
        let printer = self.printer;
        match event {
            Event::Admit {
                adapter,
                step,
                total_steps,
                ..
            } => self.admit(adapter, *step, *total_steps),
            Event::Park {
                adapter,
                step,
                reason,
                ..
            } => {
                if let Some(line) = self.adapters.get_mut(adapter) {
                    line.row.trains = false;
                    line.pace.pause();
                }
                printer.note(&format!("{adapter} is parked at step {step}: {reason}"));
            }
            Event::OutOfMemory { .. } => printer.warning(&out_of_memory(event)),
            Event::Step { adapter, .. } => {
                if let Some(line) = self.adapters.get_mut(adapter) {
                    line.take_step(event);
                }
                self.stepped.push(adapter.clone());
            }
            Event::Iteration {
                seconds,
                tokens_per_second,
                ..
            } => {
                self.tokens_per_second = *tokens_per_second;
                self.iteration(*seconds, now);
            }
            Event::Eval {
                adapter,
                step,
                loss,
                best,
                ..
            } => {
                let best = if *best { ", the best so far" } else { "" };
                let loss = loss.map(|loss| format!("{loss:.4}"));
                let loss = loss.as_deref().unwrap_or("not finite");
                self.note_on_one(&format!("{adapter} {step} | validation loss {loss}{best}"));
            }
            Event::AdapterCancelled { adapter, step } => {
                self.end(adapter);
                printer.note(&format!("{adapter} was cancelled after step {step}"));
            }
            Event::AdapterDone {
                adapter,
                step,
                reason,
            } => {
                self.end(adapter);
                self.note_on_one(&format!("{adapter} is done at step {step}: {reason}"));
            }
            Event::AdapterFailed {
                adapter,
                step,
                reason,
            } => {
                self.end(adapter);
                self.failed.insert(adapter.clone());
                printer.error(&format!("{adapter} failed at step {step}: {reason}"));
            }
            Event::Warning { message } => printer.warning(message),
            Event::Resume {
                iteration, path, ..
            } => printer.note(&format!("resumed after iteration {iteration}, from {path}")),
            Event::Answers { .. } => self.spinner = printer.spinner("answering prompts"),
            Event::RunStart { .. } if self.is_many() => {
                let count = self.known;
                printer.note(&format!(
                    "{count} adapters: events.jsonl has the steps of each"
                ));
            }
            Event::Reference { .. } | Event::StartValues { .. } => {
                if let Some(work) = long_work(event) {
                    printer.note(&work);
                }
            }
            Event::RunStart { .. }
            | Event::Regroup { .. }
            | Event::Passes { .. }
            | Event::Checkpoint { .. }
            | Event::RunCheckpoint { .. }
            | Event::RunEnd { .. } => {}
        }
    }

    /// Removes the bars. Returns the names of adapters whose failure was printed.
    pub(crate) fn finish(self) -> BTreeSet<String> {
        let bars = self.bar.iter().chain(&self.spinner);
        bars.for_each(ProgressBar::finish_and_clear);
        self.failed
    }

    fn admit(&mut self, adapter: &str, step: usize, total_steps: usize) {
        if let Some(line) = self.adapters.get_mut(adapter) {
            line.row.trains = true;
            return;
        }
        self.to_come.0 = self.to_come.0.saturating_sub(step);
        self.to_come.1 = self.to_come.1.saturating_sub(total_steps);
        if self.bar.is_none() && self.spinner.is_none() {
            self.spinner = self.printer.spinner("first steps");
        }
        let order = self.ended.0 + self.adapters.len();
        self.known = self.known.max(order + 1);
        let line = Line {
            order,
            row: Row {
                name: adapter.to_owned(),
                step,
                total_steps,
                trains: true,
                cells: Vec::new(),
                more: Vec::new(),
            },
            tokens: 0,
            pace: Pace::default(),
            last_plain: LastPlainLine::default(),
        };
        self.adapters.insert(adapter.to_owned(), line);
    }

    /// The duration of the iteration for the adapters that took a step in it.
    fn iteration(&mut self, seconds: f64, now: Instant) {
        let many = self.is_many();
        let drawn = self.printer.bars().is_some();
        let stepped = std::mem::take(&mut self.stepped);
        self.pace.add(stepped.len(), seconds, now);
        for adapter in stepped {
            let Some(line) = self.adapters.get_mut(&adapter) else {
                continue;
            };
            line.pace.add(1, seconds, now);
            if seconds > 0.0 {
                let rate = line.tokens as f64 / seconds;
                line.row.more.push(format!("{rate:.0} tok/s"));
            }
            if !drawn && !many && line.last_plain.is_due(&line.row, now) {
                self.printer.note(&plain(&line.row()));
            }
        }
        if drawn {
            self.draw(now);
        } else if many {
            let all = self.all(now);
            if self.last_plain.is_due(&all, now) {
                self.printer.note(&plain(&all));
            }
        }
    }

    fn end(&mut self, adapter: &str) {
        if let Some(line) = self.adapters.remove(adapter) {
            self.ended.0 += 1;
            self.ended.1 += line.row.step;
        }
    }

    /// True if there are too many adapters for a line each.
    fn is_many(&self) -> bool {
        self.known > MANY
    }

    /// A line about something that every adapter reaches.
    fn note_on_one(&self, line: &str) {
        if !self.is_many() {
            self.printer.note(line);
        }
    }

    /// All adapters in one line.
    fn all(&self, now: Instant) -> Row {
        let (mut step, mut total_steps) = self.to_come;
        step += self.ended.1;
        total_steps += self.ended.1;
        let mut longest = Duration::ZERO;
        for line in self.adapters.values() {
            step += line.row.step;
            total_steps += line.row.total_steps;
            longest = longest.max(line.time_left().unwrap_or_default());
        }
        // Fewer adapters do not train faster at the end, so the longest adapter is a lower bound.
        let left = left(&self.pace, step, total_steps);
        Row {
            name: TOTAL_NAME.to_owned(),
            step,
            total_steps,
            trains: true,
            cells: vec![
                format!("{:.0} tok/s", self.tokens_per_second),
                time_left(left.map(|left| left.max(longest))),
            ],
            more: vec![
                format!("{} of {} done", self.ended.0, self.known),
                format!("after {}", frame::time(now.duration_since(self.began))),
            ],
        }
    }

    fn frame(&self, size: Size, now: Instant) -> Vec<String> {
        let mut lines: Vec<&Line> = self.adapters.values().collect();
        lines.sort_by_key(|line| line.order);
        let rows: Vec<Row> = lines.into_iter().map(Line::row).collect();
        frame::compose(&rows, &self.all(now), size)
    }

    fn draw(&mut self, now: Instant) {
        let Some(bars) = self.printer.bars() else {
            return;
        };
        let early = |frame: LastFrame| now.duration_since(frame.at) < FRAME_INTERVAL;
        if self.last_frame.is_some_and(early) {
            return;
        }
        let size = Size::of_stderr();
        if let Some(last) = self.last_frame.filter(|last| last.columns != size.columns) {
            self.printer.wipe(last.lines, last.columns);
        }
        let frame = self.frame(size, now);
        self.last_frame = Some(LastFrame {
            at: now,
            columns: size.columns,
            lines: frame.len(),
        });
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
        let bar = self.bar.get_or_insert_with(|| {
            // Drawn only once it has content: anything that a bar shows before it is among the others stays on the
            // screen.
            let bar = bars.insert(0, ProgressBar::new_spinner());
            bar.set_style(printer::style("{msg}"));
            bar
        });
        bar.set_message(frame.join("\n"));
    }
}

/// The warning of an event about memory that ran out.
fn out_of_memory(event: &Event) -> String {
    let Event::OutOfMemory {
        iteration,
        reason,
        parked,
        microbatch_rows,
    } = event
    else {
        return String::new();
    };
    let with = match (parked, microbatch_rows) {
        (Some(parked), _) => format!(" without {parked}"),
        (None, Some(rows)) => format!(" with micro-batches of {rows} rows"),
        (None, None) => String::new(),
    };
    format!("{reason}; continues from iteration {iteration}{with}")
}

/// Work before the steps of an adapter, if it took long.
fn long_work(event: &Event) -> Option<String> {
    let (adapter, work, seconds) = match event {
        Event::Reference {
            adapter,
            sequences,
            seconds,
            ..
        } => {
            let work = format!("log-probabilities of {sequences} sequences under its reference");
            (adapter, work, seconds)
        }
        Event::StartValues {
            adapter,
            decompositions,
            seconds,
            ..
        } => {
            let work = format!("{decompositions} decompositions for start values");
            (adapter, work, seconds)
        }
        _ => return None,
    };
    (*seconds > LONG_REFERENCE).then(|| format!("{adapter}: {work} took {seconds:.0} s"))
}

#[cfg(test)]
mod tests;
