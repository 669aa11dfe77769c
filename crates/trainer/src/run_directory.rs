use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{Event, TrainerError, event::EVENT_VERSION};

const EVENTS: &str = "events.jsonl";
const CONFIG: &str = "config.resolved.yaml";

/// The directory of one run. A directory that already holds a run is never touched.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    events: File,
}

#[derive(Serialize)]
struct Line<'a> {
    v: u32,
    #[serde(flatten)]
    event: &'a Event,
}

impl RunDirectory {
    /// Creates the directory, with the resolved configuration and an empty list of events.
    pub(crate) fn create(path: &Path, config: &str) -> Result<Self, TrainerError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| TrainerError::Write { path, source }
        };
        fs::create_dir_all(path).map_err(failed(path))?;
        if path.join("adapters").exists() {
            return Err(TrainerError::RunExists {
                path: path.to_owned(),
            });
        }
        // Creating the list of events is what claims the directory: of two runs one fails here.
        let events_path = path.join(EVENTS);
        let events = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(&events_path);
        let events = events.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => TrainerError::RunExists {
                path: path.to_owned(),
            },
            _ => failed(&events_path)(error),
        })?;
        let config_path = path.join(CONFIG);
        fs::write(&config_path, config).map_err(failed(&config_path))?;
        let adapters = path.join("adapters");
        fs::create_dir(&adapters).map_err(failed(&adapters))?;
        Ok(Self {
            path: path.to_owned(),
            events,
        })
    }

    /// Where an adapter is kept: `which` is `last` or `best`.
    pub(crate) fn adapter(&self, name: &str, which: &str) -> PathBuf {
        self.path.join("adapters").join(name).join(which)
    }

    /// A path as events name it.
    pub(crate) fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.path)
            .unwrap_or(path)
            .display()
            .to_string()
    }

    /// Appends one event.
    pub(crate) fn append(&mut self, event: &Event) -> Result<(), TrainerError> {
        let mut line = serde_json::to_string(&Line {
            v: EVENT_VERSION,
            event,
        })
        .map_err(|error| self.write_failed(error.into()))?;
        line.push('\n');
        self.events
            .write_all(line.as_bytes())
            .map_err(|error| self.write_failed(error))
    }

    fn write_failed(&self, source: io::Error) -> TrainerError {
        TrainerError::Write {
            path: self.path.join(EVENTS),
            source,
        }
    }
}
