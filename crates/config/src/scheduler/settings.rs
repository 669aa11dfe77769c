use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MemoryLimit;

/// Which adapters train at a time, and beside which others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SchedulerConfig {
    /// Whose turn it is.
    pub policy: PolicyChoice,
    /// How much of a device's memory may be used.
    pub memory_limit: MemoryLimit,
    /// How much neighbours may slow an adapter down, at least 1: its step time among k adapters of a
    /// device, divided by the step time it has with 1/k of the device to itself. tLoRA's bound, whose
    /// jobs each bring their share of the devices.
    pub max_slowdown: f64,
    /// At most this many adapters train at the same time; `None` is no cap.
    pub max_adapters: Option<usize>,
    /// Seconds of waiting that count as one more priority; above 0. `None` never does.
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
