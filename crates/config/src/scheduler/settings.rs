use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MemoryLimit;

/// Which adapters train at a time, and beside which others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping of scheduler settings"
)]
pub struct SchedulerConfig {
    /// Whose turn it is.
    pub policy: PolicyChoice,
    /// How much of a device's memory may be used: a fraction, or a size such as 20GiB.
    pub memory_limit: MemoryLimit,
    /// How much neighbours may slow an adapter down: its step time among k adapters of a device,
    /// divided by the step time it has with 1/k of the device to itself.
    #[schemars(range(min = 1.0))]
    pub max_slowdown: f64,
    /// At most this many adapters train at the same time.
    #[schemars(range(min = 1))]
    pub max_adapters: Option<usize>,
    /// Every so many seconds of waiting count as one more priority.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub aging: Option<f64>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            policy: PolicyChoice::BestEffortFifo,
            memory_limit: MemoryLimit::Fraction(0.9),
            max_slowdown: 1.2,
            max_adapters: None,
            aging: None,
        }
    }
}

/// Whose turn it is to train, in Kueue's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyChoice {
    /// By priority, then in the order of arrival; one that does not fit holds up all behind it.
    StrictFifo,
    /// As `strict_fifo`, but those behind go ahead while one does not fit.
    BestEffortFifo,
    /// Tenants in turn, by the tokens each has had.
    Fair,
}
