//! How tasks come to a run that goes on, and what becomes of them there.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use loraloom_config::{AdapterConfig, DatasetConfig, EarlyStopping};
use loraloom_scheduler::TaskId;

use crate::{DeviceRoom, Standby};

/// Whatever keeps a source from being read or written.
pub type SourceError = Box<dyn Error + Send + Sync>;

/// A task for a run that goes on.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// Its identity, and its turn among tasks of one priority. Never used twice.
    pub id: TaskId,
    /// What is to be trained.
    pub adapter: AdapterConfig,
    /// Its dataset.
    pub dataset: DatasetConfig,
    /// Chooses the dataset's validation rows.
    pub seed: u64,
    /// Digest of its rows when they were first seen; a task whose rows are others fails.
    pub digest: String,
    /// The sweep that it is compared in, if that stops trials early.
    pub sweep: Option<(String, EarlyStopping)>,
    /// Whether its owner holds it.
    pub paused: bool,
}

/// What is asked of a run between two iterations.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Train this task, too; from where it was saved, if it was. One that has failed is resumed.
    Train(Box<NewTask>),
    /// Let a task leave its place and wait for its owner.
    Pause(TaskId),
    /// Put a paused task back into the line.
    Resume(TaskId),
    /// End a task; what it has saved stays.
    Cancel(TaskId),
    /// End a task that cannot go on, and why.
    Fail(TaskId, String),
    /// Keep what the last checkpoint has of a task of this name that has failed: it may be resumed.
    Keep(TaskId, String),
}

/// Where the tasks of a run come from while it goes on.
pub trait TaskSource {
    /// Says what the run's devices have room for, once.
    ///
    /// # Errors
    /// Any error ends the run, with everything saved.
    fn rooms(&mut self, rooms: &[DeviceRoom]) -> Result<(), SourceError>;

    /// What is to be done before the next iteration; `None` ends the run. While nobody trains, `idle`
    /// is set, and this may wait a moment for something to do.
    ///
    /// # Errors
    /// As [`rooms`](Self::rooms).
    fn orders(&mut self, idle: bool) -> Result<Option<Vec<Order>>, SourceError>;

    /// Why tasks that wait do so, after a decision.
    ///
    /// # Errors
    /// As [`rooms`](Self::rooms).
    fn decided(&mut self, waiting: &[(TaskId, String)]) -> Result<(), SourceError>;
}

/// What ends iterations without a pause before their time.
#[derive(Debug, Clone, Copy)]
pub struct Signals<'a> {
    /// The run is to end, with everything saved.
    pub stop: &'a AtomicBool,
    /// The source has orders.
    pub news: &'a AtomicBool,
    /// Everything is to be saved, and the run to go on; unset once that begins.
    pub save: &'a AtomicBool,
    /// Saves the run if it is to end inside a step.
    pub standby: Option<&'a Arc<Standby>>,
}

/// A flag that nobody sets.
static NEVER: AtomicBool = AtomicBool::new(false);

impl<'a> From<&'a AtomicBool> for Signals<'a> {
    /// Only a flag that ends the run.
    fn from(stop: &'a AtomicBool) -> Self {
        Self {
            stop,
            news: &NEVER,
            save: &NEVER,
            standby: None,
        }
    }
}

impl Signals<'_> {
    pub(crate) fn any(self) -> bool {
        [self.stop, self.news, self.save]
            .iter()
            .any(|signal| signal.load(Ordering::Relaxed))
    }

    pub(crate) fn stop(self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether everything is to be saved; it is said once.
    pub(crate) fn take_save(self) -> bool {
        // Nothing is written to a flag that nobody sets.
        self.save.load(Ordering::Relaxed) && self.save.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::Signals;

    #[test]
    fn every_signal_ends_a_window() {
        let (no, yes) = (AtomicBool::new(false), AtomicBool::new(true));
        let none = Signals::from(&no);
        assert!(!none.any());
        for signals in [
            Signals { stop: &yes, ..none },
            Signals { news: &yes, ..none },
            Signals { save: &yes, ..none },
        ] {
            assert!(signals.any(), "{signals:?}");
        }
    }
}
