use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::Standby;

/// Flags that end a window early.
#[derive(Debug, Clone, Copy)]
pub struct Signals<'a> {
    /// Save everything and end the run.
    pub stop: &'a AtomicBool,
    /// The [`TaskSource`](crate::TaskSource) has commands.
    pub news: &'a AtomicBool,
    /// Save everything and continue; cleared when saving begins.
    pub save: &'a AtomicBool,
    /// Saves the run if a stop comes inside a step.
    pub standby: Option<&'a Arc<Standby>>,
}

/// A flag that is never set.
static NEVER: AtomicBool = AtomicBool::new(false);

impl<'a> From<&'a AtomicBool> for Signals<'a> {
    /// Signals with only a flag that ends the run.
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
    pub(super) fn any(self) -> bool {
        [self.stop, self.news, self.save]
            .iter()
            .any(|signal| signal.load(Ordering::Relaxed))
    }

    pub(super) fn stop(self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// True if everything should be saved; clears the flag.
    pub(super) fn take_save(self) -> bool {
        // The shared flag that is never set is not written to.
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
