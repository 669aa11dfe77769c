use std::{fmt, iter::Sum, ops::Add};

use serde::{Deserialize, Serialize};

/// Identifies a task in a scheduler and in a queue; never reused. In a queue, smaller was accepted earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.0)
    }
}

/// One adapter to train: its tenant, its priority, and what a step costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Identity; never used twice.
    pub id: TaskId,
    /// The adapter's name.
    pub name: String,
    /// The tenant that it belongs to.
    pub tenant: String,
    /// A larger one comes first.
    pub priority: i64,
    /// Sequence number of its arrival.
    pub arrival: u64,
    /// Rank of the adapter.
    pub rank: usize,
    /// Rows of one optimizer step, accumulation included.
    pub rows_per_step: usize,
    /// Tokens of one optimizer step, on average.
    pub tokens_per_step: usize,
    /// Optimizer steps until it is done.
    pub total_steps: usize,
    /// Passes of a whole step, one for each of its micro-batches; at least 1.
    pub passes_per_step: usize,
    /// Most iterations that a step may be spread over; at least 1.
    pub max_parts: usize,
    /// Its load on the memory of a device.
    pub load: Load,
}

/// Passes of one of `parts` parts of a step; unequal parts are averaged.
pub(crate) fn passes_in(passes_per_step: usize, parts: usize) -> f64 {
    if passes_per_step <= parts {
        return 1.0;
    }
    passes_per_step as f64 / parts.max(1) as f64
}

/// Memory that one or several tasks need of a device while they train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Load {
    /// Upper bound on the tokens of one pass: B·L of the paper's memory model.
    pub tokens: u64,
    /// Upper bound on the sum of the squared lengths of one pass: B·L².
    pub squared_tokens: u64,
    /// Bytes of the adapter, its gradients and its moments over the whole model: known, not fitted.
    pub adapter_bytes: u64,
    /// Bytes of activations over the whole model that a pass needs for certain, however small its
    /// micro-batches become.
    #[serde(default)]
    pub certain_bytes: u64,
}

impl Load {
    /// True if `load` asks for no more than this in any respect. Activations are asked for by tokens.
    pub fn covers(&self, load: Self) -> bool {
        load.tokens <= self.tokens
            && load.squared_tokens <= self.squared_tokens
            && load.adapter_bytes <= self.adapter_bytes
    }
}

impl Add for Load {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            squared_tokens: self.squared_tokens.saturating_add(other.squared_tokens),
            adapter_bytes: self.adapter_bytes.saturating_add(other.adapter_bytes),
            certain_bytes: self.certain_bytes.saturating_add(other.certain_bytes),
        }
    }
}

impl Sum for Load {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::default(), Self::add)
    }
}
