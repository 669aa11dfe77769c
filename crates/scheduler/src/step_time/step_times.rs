use std::collections::VecDeque;

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

use super::{StepTimeModel, Work, identified::identified};
use crate::nnls::nnls;

/// Iterations that are remembered: enough for four coefficients, few enough to follow a device whose
/// speed changes.
const REMEMBERED: usize = 256;

/// Iterations that a fit needs.
const NEEDED: usize = 8;

// Columns, in the order of [`Work`]'s features.
const PASSES: usize = 0;
const TOKENS: usize = 1;
const RANK_TOKENS: usize = 2;
const SEGMENTS: usize = 3;

/// Measured iterations, and the step-time model that follows from them.
///
/// The fit makes relative errors small, Σ ((predicted − measured) / measured)², so that short
/// iterations count as much as long ones, and one that took ten times as long as it should (the
/// first one compiles kernels) pulls no harder than one predicted at nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    measured: VecDeque<(Work, f64)>,
}

/// A step-time model and how well it explains the iterations that it was fitted to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTimeFit {
    /// The model.
    pub model: StepTimeModel,
    /// Iterations it was fitted to.
    pub iterations: usize,
    /// Mean of |predicted − measured| / measured over them.
    pub mean_error: f64,
    /// Largest of |predicted − measured| / measured.
    pub worst_error: f64,
}

impl StepTimes {
    /// Nothing measured yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in an iteration: what was done in it, all groups together, and the seconds a device was
    /// busy with it. With several pipeline stages these are the seconds of the iteration without the
    /// bubble: seconds · (1 − bubble ratio).
    ///
    /// Returns whether it was of use: seconds must be positive and tokens not nothing.
    pub fn observe(&mut self, work: Work, seconds: f64) -> bool {
        let features = work.features();
        let usable = features.iter().all(|f| f.is_finite() && *f >= 0.0) && work.tokens > 0.0;
        if !usable || !seconds.is_finite() || seconds <= 0.0 {
            return false;
        }
        if self.measured.len() == REMEMBERED {
            self.measured.pop_front();
        }
        self.measured.push_back((work, seconds));
        true
    }

    /// The model that explains the remembered iterations best, or `None` while too few of them
    /// were measured (8), or while they are too alike to tell what a pass costs from what its tokens
    /// cost.
    ///
    /// Cost goes to tokens, passes, ranks and segments in this order where they cannot be told apart:
    /// with all adapters of one rank, the adapters' arithmetic counts as the tokens'.
    pub fn fit(&self) -> Option<StepTimeFit> {
        if self.measured.len() < NEEDED {
            return None;
        }
        // Divided by the measured seconds, every target is 1 and residuals are relative.
        let mut a = DMatrix::from_fn(self.measured.len(), 4, |row, column| {
            let (work, seconds) = &self.measured[row];
            work.features()[column] / seconds
        });
        let norms: Vec<f64> = a.column_iter().map(|column| column.norm()).collect();
        for (mut column, &norm) in a.column_iter_mut().zip(&norms) {
            if norm > 0.0 {
                column /= norm;
            }
        }
        let kept = identified(&a, &[TOKENS, PASSES, RANK_TOKENS, SEGMENTS]);
        if !(kept.contains(&TOKENS) && kept.contains(&PASSES)) {
            return None;
        }
        let targets = DVector::from_element(self.measured.len(), 1.0);
        let x = nnls(&a.select_columns(&kept), &targets)?;
        let mut coefficients = [0.0; 4];
        for (&column, &value) in kept.iter().zip(x.iter()) {
            coefficients[column] = value / norms[column];
        }
        Some(self.judge(StepTimeModel::from_coefficients(coefficients)))
    }

    fn judge(&self, model: StepTimeModel) -> StepTimeFit {
        let errors = self
            .measured
            .iter()
            .map(|(work, seconds)| (model.seconds(work) - seconds).abs() / seconds);
        let (sum, worst) = errors.fold((0.0, 0.0_f64), |(sum, worst), error| {
            (sum + error, worst.max(error))
        });
        StepTimeFit {
            model,
            iterations: self.measured.len(),
            mean_error: sum / self.measured.len() as f64,
            worst_error: worst,
        }
    }
}
