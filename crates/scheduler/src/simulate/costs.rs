use serde::{Deserialize, Serialize};

use super::SimulationError;
use crate::{Load, Task};

/// What an iteration really takes on one device. The scheduler never sees these numbers: it sees
/// seconds and bytes, as it does in training, and fits its own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Seconds of any iteration: launches, and reading the weights.
    pub seconds_constant: f64,
    /// Seconds per token.
    pub seconds_per_token: f64,
    /// Seconds per token of padding.
    pub seconds_per_padding_token: f64,
    /// Seconds per token and rank of its adapter.
    pub seconds_per_rank_token: f64,
    /// Seconds per task.
    pub seconds_per_task: f64,
    /// Bytes of a device.
    pub device_bytes: f64,
    /// Bytes that are taken before any task: weights, and what the runtime holds.
    pub bytes_constant: f64,
    /// Bytes per token, padding included.
    pub bytes_per_token: f64,
    /// Bytes per token and length of its row, padding included.
    pub bytes_per_squared_token: f64,
    /// Bytes of an adapter per rank: weights, gradients and both moments.
    pub adapter_bytes_per_rank: f64,
}

/// What a task brings to one iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Share {
    pub(super) rank: usize,
    /// Rows in this iteration; a part of the step's rows may be a fraction on average.
    pub(super) rows: f64,
    /// Tokens of a row.
    pub(super) length: f64,
}

impl Share {
    /// The share of a task whose steps are spread over `parts` iterations.
    pub(super) fn of(task: &Task, parts: usize) -> Self {
        let rows = task.rows_per_step.max(1) as f64;
        Self {
            rank: task.rank,
            rows: rows / parts.max(1) as f64,
            length: task.tokens_per_step as f64 / rows,
        }
    }

    pub(super) fn tokens(self) -> f64 {
        self.rows * self.length
    }
}

impl Costs {
    /// Costs to try the simulator with: estimates, not measured.
    pub const fn provisional() -> Self {
        Self {
            seconds_constant: 0.02,
            seconds_per_token: 1e-5,
            seconds_per_padding_token: 1e-5,
            seconds_per_rank_token: 1e-8,
            seconds_per_task: 1e-3,
            device_bytes: 24e9,
            bytes_constant: 4e9,
            bytes_per_token: 6e5,
            bytes_per_squared_token: 0.0,
            adapter_bytes_per_rank: 4.5e6,
        }
    }

    /// Seconds of an iteration: rows of all tasks are padded to the longest of them.
    pub(super) fn seconds(&self, shares: &[Share]) -> f64 {
        let tokens: f64 = shares.iter().map(|share| share.tokens()).sum();
        let rank_tokens = shares
            .iter()
            .map(|share| share.tokens() * share.rank as f64);
        let padding = padded_tokens(shares) - tokens;
        self.seconds_constant
            + self.seconds_per_token * tokens
            + self.seconds_per_padding_token * padding
            + self.seconds_per_rank_token * rank_tokens.sum::<f64>()
            + self.seconds_per_task * shares.len() as f64
    }

    /// Seconds of a step of a task that has a device to itself.
    pub fn seconds_alone(&self, task: &Task) -> f64 {
        self.seconds(&[Share::of(task, 1)])
    }

    /// Seconds that a device with nothing but this to do, and no end of it, would spend on what the
    /// task trains in an iteration.
    pub(super) fn useful_seconds(&self, share: Share) -> f64 {
        share.tokens() * (self.seconds_per_token + self.seconds_per_rank_token * share.rank as f64)
    }

    /// Bytes taken during an iteration.
    pub(super) fn bytes(&self, shares: &[Share]) -> f64 {
        let tokens = padded_tokens(shares);
        let ranks: usize = shares.iter().map(|share| share.rank).sum();
        self.bytes_constant
            + self.bytes_per_token * tokens
            + self.bytes_per_squared_token * tokens * longest(shares)
            + self.adapter_bytes_per_rank * ranks as f64
    }

    /// What a task of these rows asks of a device's memory.
    pub(super) fn load(&self, rank: usize, rows: usize, length: usize) -> Load {
        Load {
            tokens: (rows * length) as u64,
            squared_tokens: (rows * length * length) as u64,
            adapter_bytes: (self.adapter_bytes_per_rank * rank as f64) as u64,
        }
    }

    /// Whether the numbers can be costs.
    ///
    /// # Errors
    /// [`SimulationError::OutOfRange`] names the first that cannot.
    pub fn validate(&self) -> Result<(), SimulationError> {
        let named = [
            ("seconds_constant", self.seconds_constant),
            ("seconds_per_token", self.seconds_per_token),
            ("seconds_per_padding_token", self.seconds_per_padding_token),
            ("seconds_per_rank_token", self.seconds_per_rank_token),
            ("seconds_per_task", self.seconds_per_task),
            ("device_bytes", self.device_bytes),
            ("bytes_constant", self.bytes_constant),
            ("bytes_per_token", self.bytes_per_token),
            ("bytes_per_squared_token", self.bytes_per_squared_token),
            ("adapter_bytes_per_rank", self.adapter_bytes_per_rank),
        ];
        let wrong = named
            .iter()
            .find(|(_, value)| !value.is_finite() || *value < 0.0);
        let expected = "finite and not negative";
        let error = |name, value, expected| SimulationError::OutOfRange {
            name,
            value,
            expected,
        };
        match wrong {
            Some(&(name, value)) => Err(error(name, value, expected)),
            None if self.seconds_per_token <= 0.0 => {
                let (name, value) = ("seconds_per_token", self.seconds_per_token);
                Err(error(name, value, "above 0"))
            }
            None => Ok(()),
        }
    }
}

fn longest(shares: &[Share]) -> f64 {
    shares.iter().map(|share| share.length).fold(0.0, f64::max)
}

fn padded_tokens(shares: &[Share]) -> f64 {
    longest(shares) * shares.iter().map(|share| share.rows).sum::<f64>()
}
