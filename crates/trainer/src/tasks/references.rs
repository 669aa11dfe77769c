//! Log-probabilities of sequences under the reference model of a preference.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Place of a sequence in a task's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SequenceId {
    pub(crate) is_validation: bool,
    /// The samples that its prompt and its completion are of.
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
}

/// Log-probabilities of the completions of sequences, those that are known.
///
/// The reference does not change in training, so that a sequence is computed once, for all tasks with these rows and
/// the same reference, and for all epochs.
#[derive(Debug, Default)]
pub(crate) struct References(Mutex<HashMap<SequenceId, f32>>);

impl References {
    pub(crate) fn get(&self, sequence: SequenceId) -> Option<f32> {
        self.known().get(&sequence).copied()
    }

    pub(crate) fn insert(&self, sequence: SequenceId, log_prob: f32) {
        self.known().insert(sequence, log_prob);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<SequenceId, f32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
