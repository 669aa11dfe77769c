use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

/// What a trace is replayed under: three baselines, and the policies of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedPolicy {
    /// A task has a device to itself; strictly first come, first served.
    OneTaskPerDevice,
    /// All that fits trains together; strictly first come, first served.
    NaiveGrouping,
    /// A task joins the device with the fewest tokens among those with room; strictly first come, first
    /// served.
    LeastLoaded,
    /// Grouped under a bound on slowdown; strictly first come, first served.
    StrictFifo,
    /// The same, and tasks that fit go ahead of the first in line if that does not delay it.
    BestEffortFifo,
    /// Grouped under a bound on slowdown; the tenant that was served least is next.
    Fair,
}

impl SimulatedPolicy {
    /// All of them, baselines first.
    pub const ALL: [Self; 6] = [
        Self::OneTaskPerDevice,
        Self::NaiveGrouping,
        Self::LeastLoaded,
        Self::StrictFifo,
        Self::BestEffortFifo,
        Self::Fair,
    ];

    /// The name that it has in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneTaskPerDevice => "one_task_per_device",
            Self::NaiveGrouping => "naive_grouping",
            Self::LeastLoaded => "least_loaded",
            Self::StrictFifo => "strict_fifo",
            Self::BestEffortFifo => "best_effort_fifo",
            Self::Fair => "fair",
        }
    }
}

impl fmt::Display for SimulatedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no policy `{name}`; there are one_task_per_device, naive_grouping, least_loaded, strict_fifo, best_effort_fifo and fair"
)]
pub struct UnknownPolicy {
    /// The name.
    pub name: String,
}

impl FromStr for SimulatedPolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| UnknownPolicy {
            name: name.to_owned(),
        })
    }
}

impl Serialize for SimulatedPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::SimulatedPolicy;

    #[test]
    fn names_come_back() {
        for policy in SimulatedPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "fifo".parse::<SimulatedPolicy>().unwrap_err().to_string();
        for policy in SimulatedPolicy::ALL {
            assert!(error.contains(policy.name()), "{error}");
        }
    }
}
