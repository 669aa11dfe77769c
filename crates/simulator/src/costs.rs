use serde::{Deserialize, Serialize};

use loraloom_scheduler::{Load, Task};

use super::{Padding, SimulationError};

/// Seconds and bytes of an iteration on one device. The scheduler does not know these costs: it measures iterations,
/// as in training, and fits its own models. Its step-time model has no term for attention.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Seconds of any iteration: launches, and reading the weights.
    pub seconds_constant: f64,
    /// Seconds per token.
    pub seconds_per_token: f64,
    /// Seconds per token and length of its row: attention.
    pub seconds_per_squared_token: f64,
    /// Seconds per token of padding, where batches are padded.
    pub seconds_per_padding_token: f64,
    /// Seconds per token and rank of its adapter.
    pub seconds_per_rank_token: f64,
    /// Seconds per task.
    pub seconds_per_task: f64,
    /// Bytes of a device.
    pub device_bytes: f64,
    /// Bytes that are in use without tasks: weights, and those of the runtime.
    pub bytes_constant: f64,
    /// Bytes per token, padding included.
    pub bytes_per_token: f64,
    /// Bytes per token and length of its row, padding included.
    pub bytes_per_squared_token: f64,
    /// Bytes of an adapter per rank: weights, gradients and both moments.
    pub adapter_bytes_per_rank: f64,
}

impl Default for Costs {
    /// Fitted to iterations of the `micro` shape (24 M parameters, float32) on two cores of an otherwise idle AMD
    /// EPYC, by `cargo bench -p loraloom-benches --bench simulator_costs`: median seconds of 24 batches of 128 to
    /// 4096 tokens, of 1 to 8 adapters of rank 2 to 64. They are off by 6.9 % on average, 14.4 % at most, which hides
    /// the cost of rank. Bytes are the peak allocations of 11 of them, and are off by 0.35 % on average, 0.85 % at
    /// most. A device of 4 GB then takes about 18,000 tokens in an iteration.
    fn default() -> Self {
        Self {
            seconds_constant: 0.0477,
            seconds_per_token: 7.10e-4,
            seconds_per_squared_token: 3.57e-7,
            seconds_per_padding_token: 7.10e-4,
            seconds_per_rank_token: 3.9e-8,
            seconds_per_task: 0.0122,
            device_bytes: 4e9,
            bytes_constant: 1.06e8,
            bytes_per_token: 2.11e5,
            bytes_per_squared_token: 0.0,
            adapter_bytes_per_rank: 5.13e5,
        }
    }
}

/// The share of one iteration that a task has.
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
    /// Seconds of an iteration.
    pub(super) fn seconds(&self, shares: &[Share], padding: Padding) -> f64 {
        let sum = |of: fn(&Share) -> f64| shares.iter().map(of).sum::<f64>();
        let tokens = sum(|share| share.tokens());
        let seconds = self.seconds_constant
            + self.seconds_per_token * tokens
            + self.seconds_per_rank_token * sum(|share| share.tokens() * share.rank as f64)
            + self.seconds_per_task * shares.len() as f64;
        match padding {
            Padding::None => {
                let squared = sum(|share| share.tokens() * share.length);
                seconds + self.seconds_per_squared_token * squared
            }
            Padding::ToLongest => {
                let padded = padded_tokens(shares);
                let padding = self.seconds_per_padding_token * (padded - tokens);
                seconds + (padding + self.seconds_per_squared_token * padded * longest(shares))
            }
        }
    }

    /// Seconds of a step of a task that has a device to itself.
    pub fn seconds_alone(&self, task: &Task) -> f64 {
        self.seconds(&[Share::of(task, 1)], Padding::None)
    }

    /// Seconds of a share without constant costs and padding.
    pub(super) fn useful_seconds(&self, share: Share) -> f64 {
        let per_token = self.seconds_per_token
            + self.seconds_per_rank_token * share.rank as f64
            + self.seconds_per_squared_token * share.length;
        share.tokens() * per_token
    }

    /// Bytes in use during an iteration.
    pub(super) fn bytes(&self, shares: &[Share], padding: Padding) -> f64 {
        let ranks: usize = shares.iter().map(|share| share.rank).sum();
        let (tokens, squared) = match padding {
            Padding::None => {
                let tokens: f64 = shares.iter().map(|share| share.tokens()).sum();
                let squared = shares.iter().map(|share| share.tokens() * share.length);
                (tokens, squared.sum::<f64>())
            }
            Padding::ToLongest => {
                let padded = padded_tokens(shares);
                (padded, padded * longest(shares))
            }
        };
        self.bytes_constant
            + self.bytes_per_token * tokens
            + self.bytes_per_squared_token * squared
            + self.adapter_bytes_per_rank * ranks as f64
    }

    /// Load of a task with these rows.
    pub(super) fn load(&self, rank: usize, rows: usize, length: usize) -> Load {
        Load {
            tokens: (rows * length) as u64,
            squared_tokens: (rows * length * length) as u64,
            adapter_bytes: (self.adapter_bytes_per_rank * rank as f64) as u64,
            certain_bytes: 0,
        }
    }

    /// Checks the ranges of all costs.
    ///
    /// # Errors
    /// [`SimulationError::OutOfRange`] for the first that is out of its range.
    pub fn validate(&self) -> Result<(), SimulationError> {
        let named = [
            ("seconds_constant", self.seconds_constant),
            ("seconds_per_token", self.seconds_per_token),
            ("seconds_per_squared_token", self.seconds_per_squared_token),
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

#[cfg(test)]
mod tests {
    use super::{Costs, Share};
    use crate::Padding;

    const SHARES: [Share; 2] = [
        Share {
            rank: 4,
            rows: 2.0,
            length: 100.0,
        },
        Share {
            rank: 8,
            rows: 0.5,
            length: 300.0,
        },
    ];

    fn close(found: f64, expected: f64) {
        assert!(
            (found - expected).abs() < 1e-9 * expected,
            "{found} {expected}"
        );
    }

    #[test]
    fn seconds_and_bytes_are_sums_over_what_is_done() {
        let costs = Costs {
            seconds_constant: 1000.0,
            seconds_per_token: 1.0,
            seconds_per_squared_token: 0.01,
            seconds_per_padding_token: 0.5,
            seconds_per_rank_token: 0.1,
            seconds_per_task: 7.0,
            bytes_constant: 1000.0,
            bytes_per_token: 2.0,
            bytes_per_squared_token: 0.03,
            adapter_bytes_per_rank: 5.0,
            device_bytes: 1e9,
        };
        // 200 and 150 tokens; 800 and 1200 with ranks; 20,000 and 45,000 squared.
        let without = 1000.0 + 350.0 + 650.0 + 200.0 + 14.0;
        close(costs.seconds(&SHARES, Padding::None), without);
        // 2.5 rows of 300: 750 tokens, 225,000 squared.
        let padded = 1000.0 + 350.0 + 0.5 * 400.0 + 2250.0 + 200.0 + 14.0;
        close(costs.seconds(&SHARES, Padding::ToLongest), padded);
        let bytes = 1000.0 + 2.0 * 350.0 + 0.03 * 65_000.0 + 5.0 * 12.0;
        close(costs.bytes(&SHARES, Padding::None), bytes);
        let bytes = 1000.0 + 2.0 * 750.0 + 0.03 * 225_000.0 + 5.0 * 12.0;
        close(costs.bytes(&SHARES, Padding::ToLongest), bytes);
        close(costs.useful_seconds(SHARES[0]), 200.0 + 80.0 + 200.0);
    }

    #[test]
    fn what_is_no_cost_is_refused() {
        assert!(Costs::default().validate().is_ok());
        for wrong in [-1.0, f64::NAN, f64::INFINITY] {
            let costs = Costs {
                bytes_per_token: wrong,
                ..Costs::default()
            };
            let message = costs.validate().unwrap_err().to_string();
            assert!(message.starts_with("bytes_per_token is "), "{message}");
        }
        let free = Costs {
            seconds_per_token: 0.0,
            ..Costs::default()
        };
        let message = free.validate().unwrap_err().to_string();
        assert_eq!(message, "seconds_per_token is 0, but must be above 0");
    }
}
