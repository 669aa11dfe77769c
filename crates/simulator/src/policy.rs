use std::fmt;

use serde::{Serialize, Serializer};

/// What a trace is replayed under: baselines, and the policies of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedPolicy {
    /// A task has a device to itself; strictly first come, first served.
    OneTaskPerDevice,
    /// All that fits trains together; strictly first come, first served.
    NaiveGrouping,
    /// A task joins the device with the fewest tokens among those with room; strictly first come, first
    /// served.
    LeastLoaded,
    /// As [`StrictFifo`](Self::StrictFifo), and a tenant may submit so many tasks a day: the limit of
    /// requests per minute (RPM) that VTC (Sheng et al., OSDI 2024) is compared with.
    RequestRate,
    /// As [`Fair`](Self::Fair), without the lift of the counter of a tenant that returns: the other
    /// baseline of VTC, least counter first (LCF).
    LeastCounterFirst,
    /// Grouped under a bound on slowdown; strictly first come, first served.
    StrictFifo,
    /// As [`StrictFifo`](Self::StrictFifo), and a task that fits may start before an earlier one that
    /// does not, if it does not delay that one.
    BestEffortFifo,
    /// Grouped under a bound on slowdown; the tenant that was served least is next.
    Fair,
}

impl SimulatedPolicy {
    /// All of them, baselines first.
    pub const ALL: [Self; 8] = [
        Self::OneTaskPerDevice,
        Self::NaiveGrouping,
        Self::LeastLoaded,
        Self::RequestRate,
        Self::LeastCounterFirst,
        Self::StrictFifo,
        Self::BestEffortFifo,
        Self::Fair,
    ];

    /// Its name in arguments and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneTaskPerDevice => "one_task_per_device",
            Self::NaiveGrouping => "naive_grouping",
            Self::LeastLoaded => "least_loaded",
            Self::RequestRate => "rpm",
            Self::LeastCounterFirst => "lcf",
            Self::StrictFifo => "strict_fifo",
            Self::BestEffortFifo => "best_effort_fifo",
            Self::Fair => "fair",
        }
    }

    /// The policy of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

impl fmt::Display for SimulatedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for SimulatedPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
