use std::collections::BTreeMap;

use super::SweepError;
use crate::TaskId;

/// Finds trials whose training loss has diverged: it is not finite, or above a multiple of the trial's first
/// loss. The first loss is that of the base model, which every useful adapter improves on; with the best
/// loss instead, a value near zero would make any hard batch look like divergence.
#[derive(Debug, Clone)]
pub struct Divergence {
    multiple: f64,
    trials: BTreeMap<TaskId, Trial>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Trial {
    first_loss: Option<f64>,
    diverged: bool,
}

/// A trial that has diverged, with its loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Diverged {
    /// The trial.
    pub trial: TaskId,
    /// Its loss.
    pub loss: f64,
    /// The largest loss that it was allowed; `None` if it never had a finite one.
    pub limit: Option<f64>,
}

impl Divergence {
    /// Trials may have at most `multiple` times their first loss.
    ///
    /// # Errors
    /// [`SweepError::Multiple`] unless it is finite and above 1.
    pub fn new(multiple: f64) -> Result<Self, SweepError> {
        if !(multiple.is_finite() && multiple > 1.0) {
            return Err(SweepError::Multiple(multiple));
        }
        Ok(Self {
            multiple,
            trials: BTreeMap::new(),
        })
    }

    /// Adds a task. Entered again, it keeps its first loss.
    pub fn enter(&mut self, trial: TaskId) {
        self.trials.entry(trial).or_default();
    }

    /// Adds the training loss of a step. Returns whether the trial has diverged, at most once. Losses of tasks
    /// that were not entered are ignored.
    ///
    /// Losses are cross-entropies, 0 or larger. A first loss of 0 sets no limit.
    pub fn report(&mut self, trial: TaskId, loss: f64) -> Option<Diverged> {
        let entered = self.trials.get_mut(&trial)?;
        if entered.diverged {
            return None;
        }
        let limit = entered.first_loss.map(|first| first * self.multiple);
        let is_above = limit.is_some_and(|limit| limit > 0.0 && loss > limit);
        if loss.is_finite() && !is_above {
            entered.first_loss.get_or_insert(loss);
            return None;
        }
        entered.diverged = true;
        Some(Diverged { trial, loss, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::{Diverged, Divergence, SweepError};
    use crate::TaskId;

    const TRIAL: TaskId = TaskId(3);

    fn watch(multiple: f64) -> Divergence {
        let mut watch = Divergence::new(multiple).unwrap();
        watch.enter(TRIAL);
        watch
    }

    #[test]
    fn a_loss_above_the_multiple_of_the_first_is_divergence_once() {
        let mut watch = watch(2.0);
        for loss in [1.5, 0.1, 3.0, 2.9, 0.0] {
            assert_eq!(watch.report(TRIAL, loss), None, "{loss}");
        }
        let diverged = Diverged {
            trial: TRIAL,
            loss: 3.1,
            limit: Some(3.0),
        };
        assert_eq!(watch.report(TRIAL, 3.1), Some(diverged));
        watch.enter(TRIAL);
        assert_eq!(watch.report(TRIAL, f64::NAN), None);
    }

    #[test]
    fn a_loss_that_is_no_number_is_divergence_from_the_first_step() {
        for loss in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let diverged = watch(2.0).report(TRIAL, loss).unwrap();
            assert_eq!(diverged.limit, None);
            let mut later = watch(2.0);
            assert_eq!(later.report(TRIAL, 1.0), None);
            assert_eq!(later.report(TRIAL, loss).unwrap().limit, Some(2.0));
        }
    }

    #[test]
    fn nothing_is_a_multiple_of_zero_and_strangers_are_left_alone() {
        let mut watch = watch(2.0);
        assert_eq!(watch.report(TRIAL, 0.0), None);
        assert_eq!(watch.report(TRIAL, 9.0), None);
        assert_eq!(watch.report(TaskId(4), f64::NAN), None);
    }

    #[test]
    fn multiples_that_would_stop_a_good_trial_are_refused() {
        for multiple in [1.0, 0.0, -2.0, f64::INFINITY] {
            let error = Divergence::new(multiple).unwrap_err();
            assert_eq!(error, SweepError::Multiple(multiple));
        }
        assert!(Divergence::new(f64::NAN).is_err());
    }
}
