use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

use crate::Task;

/// What a device has to do: the features of the step-time model. Works add up.
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
    /// The work of one iteration of a group: each task with a part of its step's rows, one of as
    /// many parts as the number beside it says. Parts that are not equally large are averaged.
    pub fn of_group<'a>(members: impl IntoIterator<Item = (&'a Task, usize)>) -> Self {
        let mut work = Self::default();
        for (task, parts) in members {
            let share = 1.0 / parts.max(1) as f64;
            let tokens = task.tokens_per_step as f64 * share;
            work.passes = 1.0;
            work.tokens += tokens;
            work.rank_tokens += task.rank as f64 * tokens;
            work.segments += 1.0;
        }
        work
    }

    pub(super) fn features(&self) -> [f64; 4] {
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
        assert_eq!(work + Work::default(), work);
    }
}
