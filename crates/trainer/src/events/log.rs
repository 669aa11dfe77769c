use serde::Serialize;

use super::{EVENT_VERSION, Event, TaskSource};
use crate::run_directory::RunDirectory;

/// Writes events to `events.jsonl` and passes them to the observer.
pub(crate) struct EventLog<'a> {
    pub(crate) directory: RunDirectory,
    pub(crate) source: &'a mut dyn TaskSource,
    /// Number of events that could not be written to the file.
    unwritten: usize,
}

#[derive(Serialize)]
struct Line<'a> {
    v: u32,
    #[serde(flatten)]
    event: &'a Event,
}

impl<'a> EventLog<'a> {
    pub(crate) fn new(directory: RunDirectory, source: &'a mut dyn TaskSource) -> Self {
        Self {
            directory,
            source,
            unwritten: 0,
        }
    }

    /// Writes an event and passes it on. Write errors do not end a run; the number of missing events is written once
    /// writing works again.
    pub(crate) fn emit(&mut self, event: Event) {
        self.source.event(&event);
        if matches!(self.directory.replace_events(), Ok(true)) {
            let message = "events.jsonl was removed or replaced: earlier events are lost";
            let lost = Event::Warning {
                message: message.to_owned(),
            };
            self.source.event(&lost);
            if self.append(&lost).is_err() {
                self.unwritten += 1;
            }
        }
        if self.unwritten > 0 {
            let count = self.unwritten;
            let message = format!("{count} events could not be written before this one");
            if self.append(&Event::Warning { message }).is_ok() {
                self.unwritten = 0;
            }
        }
        if let Err(error) = self.append(&event) {
            if self.unwritten == 0 {
                let message = format!("events cannot be written: {error}");
                self.source.event(&Event::Warning { message });
            }
            self.unwritten += 1;
        }
    }

    pub(crate) fn warn(&mut self, message: String) {
        self.emit(Event::Warning { message });
    }

    fn append(&mut self, event: &Event) -> std::io::Result<()> {
        let v = EVENT_VERSION;
        self.directory.append(&Line { v, event })
    }
}
