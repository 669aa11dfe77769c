use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use super::wire::At;
use crate::stage_clock::now;

/// When tensors for the stage came, on this process's clock, until the pass that takes them.
#[derive(Debug, Default)]
pub(super) struct Noted(Mutex<HashMap<(usize, At), f64>>);

impl Noted {
    /// A tensor has come on a way.
    pub(super) fn arrived(&self, way: usize, at: At) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.insert((way, at), now());
    }

    /// When it came.
    pub(super) fn take(&self, way: usize, at: At) -> Option<f64> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.remove(&(way, at))
    }

    /// Forgets what came for a stage before.
    pub(super) fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}
