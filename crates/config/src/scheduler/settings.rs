use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MemoryLimit;

/// Which adapters train at the same time, and in which groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping of scheduler settings"
)]
pub struct SchedulerConfig {
    /// Order in which waiting adapters are admitted.
    pub policy: PolicyChoice,
    /// Memory of a device that the run may use: a fraction of it, or a size such as 20GiB. A wgpu
    /// device does not report its memory and needs a size.
    pub memory_limit: MemoryLimit,
    /// Largest slowdown of an adapter by its neighbours: its step time among the k adapters of a
    /// device, divided by its step time with 1/k of the device to itself.
    #[schemars(range(min = 1.0))]
    pub max_slowdown: f64,
    /// Largest number of adapters that train at the same time. By default only memory limits it.
    #[schemars(range(min = 1))]
    pub max_adapters: Option<usize>,
    /// Seconds of waiting that raise an adapter's priority by one. By default waiting does not.
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

/// Order in which waiting adapters are admitted. The names are Kueue's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyChoice {
    /// By priority, then by arrival. An adapter that does not fit blocks all behind it.
    StrictFifo,
    /// As `strict_fifo`, but smaller adapters may overtake one that does not fit.
    BestEffortFifo,
    /// Tenants take turns, by the tokens that each has trained.
    Fair,
}
