use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MemoryLimit;
use crate::{ConfigError, written_config::WrittenConfig};

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
    /// group, divided by its step time with 1/k of the device to itself.
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

impl SchedulerConfig {
    /// Checks the ranges of the section.
    ///
    /// # Errors
    /// The first value out of its range, with its place.
    pub(crate) fn check(&self, written: WrittenConfig<'_>) -> Result<(), ConfigError> {
        let refuse = |field: &str, problem: String| {
            Err(written.invalid(&format!("scheduler.{field}"), problem))
        };
        match self.memory_limit {
            MemoryLimit::Fraction(fraction) if !(fraction > 0.0 && fraction <= 1.0) => {
                let problem = format!(
                    "a fraction must be above 0 and at most 1, got {fraction}; a size has a unit, \
                     such as 20GiB"
                );
                return refuse("memory_limit", problem);
            }
            MemoryLimit::Bytes(0) => {
                return refuse("memory_limit", "must be above 0, got 0 bytes".to_owned());
            }
            _ => {}
        }
        let slowdown = self.max_slowdown;
        if !(slowdown.is_finite() && slowdown >= 1.0) {
            let problem = format!("must be finite and at least 1, got {slowdown}");
            return refuse("max_slowdown", problem);
        }
        if self.max_adapters == Some(0) {
            let problem = "must be at least 1, got 0; leave it out for no cap";
            return refuse("max_adapters", problem.to_owned());
        }
        match self.aging {
            Some(seconds) if !(seconds.is_finite() && seconds > 0.0) => refuse(
                "aging",
                format!("must be finite and above 0, got {seconds}; leave it out for none"),
            ),
            _ => Ok(()),
        }
    }
}

/// Order in which waiting adapters are admitted. The names are Kueue's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyChoice {
    /// By priority, then by arrival. An adapter that does not fit blocks all after it.
    StrictFifo,
    /// As `strict_fifo`, but smaller adapters may overtake one that does not fit.
    BestEffortFifo,
    /// Tenants take turns, by the tokens that each has trained.
    Fair,
}
