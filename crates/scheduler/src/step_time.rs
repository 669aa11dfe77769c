//! The duration of an iteration, learnt from measured iterations.

use std::{
    collections::VecDeque,
    ops::{Add, AddAssign},
};

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

use crate::{
    Task,
    least_squares::{identified, nnls},
    task::passes_in,
};

/// Work of a device: the features of the step-time model. Works add up.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Work {
    /// Batches, each with one forward and one backward pass.
    pub passes: f64,
    /// Tokens.
    pub tokens: f64,
    /// Σ rank · tokens over the adapters.
    pub rank_tokens: f64,
    /// Adapters that have rows, counted once a pass.
    pub segments: f64,
}

impl Work {
    /// The work of one iteration of a group, of tasks and the number of parts of their steps. Unequal parts
    /// are averaged.
    pub fn of_group<'a>(members: impl IntoIterator<Item = (&'a Task, usize)>) -> Self {
        let mut work = Self::default();
        for (task, parts) in members {
            let tokens = task.tokens_per_step as f64 / parts.max(1) as f64;
            let passes = passes_in(task.passes_per_step, parts);
            // The n-th micro-batches of all tasks are one pass.
            work.passes = work.passes.max(passes);
            work.tokens += tokens;
            work.rank_tokens += task.rank as f64 * tokens;
            work.segments += passes;
        }
        work
    }

    fn features(&self) -> [f64; 4] {
        [self.passes, self.tokens, self.rank_tokens, self.segments]
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passes: self.passes + other.passes,
            tokens: self.tokens + other.tokens,
            rank_tokens: self.rank_tokens + other.rank_tokens,
            segments: self.segments + other.segments,
        }
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Seconds of an iteration:
///
/// t = c₀ · passes + c₁ · tokens + c₂ · Σ rank · tokens + c₃ · segments, all c ≥ 0.
///
/// c₀ is the cost of any pass (launches, reading the backbone's weights): the tasks of a group share it,
/// which is why they are grouped. c₁ is the backbone's arithmetic, c₂ the adapters', c₃ the cost of one
/// more adapter in a batch.
///
/// With several pipeline stages, these are the seconds of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StepTimeModel {
    /// Seconds a pass: c₀.
    pub pass: f64,
    /// Seconds a token: c₁.
    pub token: f64,
    /// Seconds a token and unit of rank: c₂.
    pub rank_token: f64,
    /// Seconds an adapter in a batch: c₃.
    pub segment: f64,
}

impl StepTimeModel {
    /// Seconds that `work` takes.
    pub fn seconds(&self, work: &Work) -> f64 {
        let products = self.coefficients().into_iter().zip(work.features());
        products
            .map(|(coefficient, feature)| coefficient * feature)
            .sum()
    }

    fn coefficients(&self) -> [f64; 4] {
        [self.pass, self.token, self.rank_token, self.segment]
    }

    fn from_coefficients([pass, token, rank_token, segment]: [f64; 4]) -> Self {
        Self {
            pass,
            token,
            rank_token,
            segment,
        }
    }
}

/// Iterations that are kept: enough for four coefficients, few enough to follow a device whose speed
/// changes.
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

/// A step-time model and its error on the iterations that it was fitted to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTimeFit {
    /// The model.
    pub model: StepTimeModel,
    /// Mean of |predicted − measured| / measured over the iterations.
    pub mean_error: f64,
}

impl StepTimes {
    /// Nothing measured yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an iteration: the work of all groups, and the seconds a device was busy with it. With several
    /// pipeline stages these are the seconds of the iteration without the bubble: seconds · (1 − bubble
    /// ratio).
    ///
    /// Returns whether it is usable: seconds and tokens must be positive.
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

    /// The model that explains the iterations best; `None` for fewer than 8 iterations, or if they are too
    /// alike to tell the cost of a pass from that of its tokens.
    ///
    /// Costs that cannot be told apart count as those of tokens, passes, ranks and segments, in this order:
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
        let model = StepTimeModel::from_coefficients(coefficients);
        let errors = self
            .measured
            .iter()
            .map(|(work, seconds)| (model.seconds(work) - seconds).abs() / seconds);
        Some(StepTimeFit {
            model,
            mean_error: errors.sum::<f64>() / self.measured.len() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Load, TaskId};

    fn task(rank: usize, rows: usize, length: usize) -> Task {
        Task {
            id: TaskId(0),
            name: "math".into(),
            tenant: "default".into(),
            priority: 0,
            arrival: 0,
            rank,
            rows_per_step: rows,
            tokens_per_step: rows * length,
            total_steps: 1,
            passes_per_step: 1,
            max_parts: rows,
            load: Load::default(),
        }
    }

    #[test]
    fn parts_share_a_steps_tokens() {
        let (short, long) = (task(8, 4, 100), task(16, 2, 500));
        let work = Work::of_group([(&short, 1), (&long, 2)]);
        let expected = Work {
            passes: 1.0,
            tokens: 400.0 + 500.0,
            rank_tokens: 8.0 * 400.0 + 16.0 * 500.0,
            segments: 2.0,
        };
        assert_eq!(work, expected);
        assert_eq!(Work::of_group([]), Work::default());

        // Eight micro-batches in two parts, and one.
        let long = Task {
            passes_per_step: 8,
            ..long
        };
        let work = Work::of_group([(&short, 1), (&long, 2)]);
        let expected = Work {
            passes: 4.0,
            segments: 1.0 + 4.0,
            ..expected
        };
        assert_eq!(work, expected);
        assert_eq!(work + Work::default(), work);
    }
}
