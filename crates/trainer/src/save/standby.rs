//! Saves a run that is stopped inside a long step.

use std::{
    mem,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError, mpsc::Receiver},
};

use super::writer::{Pending, write_pending};
use crate::error::Result;

/// Lets another thread save a run that is stopped inside a long step.
///
/// Stages compute a step to its end, which can take minutes. This holds the run's newest snapshot (at most a minute
/// or one step old), and [`take_over`](Self::take_over) writes it as a checkpoint. Its caller then ends the process;
/// the steps after the snapshot are repeated on resume.
#[derive(Debug, Default)]
pub struct Standby(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// True if the run computes. Otherwise it saves, or is about to check for a stop.
    computes: bool,
    /// The snapshot, if it is newer than the last checkpoint that was begun.
    pending: Option<PendingCheckpoint>,
    /// Closed when that is written.
    writing: Option<Receiver<()>>,
}

/// A checkpoint that is not written yet.
#[derive(Debug)]
pub(crate) struct PendingCheckpoint {
    /// The directory of all checkpoints.
    pub(crate) parent: PathBuf,
    pub(crate) iteration: u64,
    /// Number of checkpoints to keep.
    pub(crate) keep: usize,
    pub(crate) items: Pending,
}

impl Standby {
    /// Writes the snapshot, unless the newest checkpoint is as new, and stops the training thread. `None` if the run
    /// does not compute: it then checks for a stop by itself.
    ///
    /// # Errors
    /// If the checkpoint cannot be written.
    pub fn take_over(&self) -> Option<Result<()>> {
        let mut state = self.state();
        if !state.computes {
            return None;
        }
        if let Some(writing) = state.writing.take() {
            // Nothing is sent: this returns when the sender is dropped.
            let _ = writing.recv();
        }
        let saved = state
            .pending
            .take()
            .map_or(Ok(()), PendingCheckpoint::write);
        // Never unlocked: the training thread waits in `wait` until the process ends.
        mem::forget(state);
        Some(saved)
    }

    /// The run computes from now on.
    pub(crate) fn compute(&self) {
        self.state().computes = true;
    }

    /// The run no longer computes. Does not return once another thread has taken over.
    pub(crate) fn wait(&self) {
        self.state().computes = false;
    }

    /// Registers a snapshot for a take-over.
    pub(crate) fn keep(&self, pending: PendingCheckpoint) {
        self.state().pending = Some(pending);
    }

    /// A checkpoint is being written until `writing` ends, and no snapshot is newer.
    pub(crate) fn has_begun(&self, writing: Option<Receiver<()>>) {
        let mut state = self.state();
        (state.pending, state.writing) = (None, writing);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingCheckpoint {
    fn write(self) -> Result<()> {
        let results = write_pending(&self.parent, self.iteration, self.keep, &self.items);
        let checkpoint = results.checkpoint.map(|checkpoint| checkpoint.path);
        checkpoint.transpose().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, mpsc},
        thread,
        time::Duration,
    };

    use super::Standby;

    #[test]
    fn nobody_takes_over_while_the_run_saves() {
        let standby = Standby::default();
        assert!(standby.take_over().is_none());
        standby.compute();
        standby.wait();
        assert!(standby.take_over().is_none());
        standby.compute();
        assert!(standby.take_over().is_some());
    }

    #[test]
    fn a_checkpoint_that_is_being_written_is_waited_for() {
        let standby = Arc::new(Standby::default());
        let (writes, writing) = mpsc::channel();
        standby.has_begun(Some(writing));
        standby.compute();
        let taking = Arc::clone(&standby);
        let taking = thread::spawn(move || taking.take_over().is_some());
        thread::sleep(Duration::from_millis(100));
        assert!(!taking.is_finished());
        drop(writes);
        assert!(taking.join().expect("no panic"));
    }
}
