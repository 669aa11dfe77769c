use std::fmt;

use super::{
    bytes::Scale,
    estimate::{Estimate, Probe},
};

/// A load that a device has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// What it is predicted to take.
    pub estimate: Estimate,
    /// What the device has.
    pub limit_bytes: u64,
}

impl Fit {
    /// The step to measure first, if the prediction reaches too far beyond what was measured.
    pub fn probe(&self) -> Option<Probe> {
        self.estimate.probe
    }

    /// What is left of the device at the bound.
    pub fn spare_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.estimate.bound_bytes)
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_need(f, &self.estimate, self.limit_bytes)
    }
}

/// A load that a device has no room for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Shortage {
    /// The device.
    pub device: String,
    /// What the load is predicted to take.
    pub estimate: Estimate,
    /// What the device has.
    pub limit_bytes: u64,
}

impl Shortage {
    /// Whether nothing that could be measured would change it: what is known is too much, or memory
    /// ran out for such a load. Otherwise a smaller step may show that the bound is too high, most of
    /// all if there is a [`probe`](Estimate::probe).
    pub fn is_certain(&self) -> bool {
        self.estimate.least_bytes > self.limit_bytes
    }

    /// What is missing.
    pub fn missing_bytes(&self) -> u64 {
        self.estimate.bound_bytes.saturating_sub(self.limit_bytes)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.device)?;
        write_need(f, &self.estimate, self.limit_bytes)
    }
}

/// "needs 9.1 GiB (8.2 GiB expected + 0.9 GiB margin) of 8.0 GiB"
fn write_need(f: &mut fmt::Formatter<'_>, estimate: &Estimate, limit: u64) -> fmt::Result {
    let (expected, bound) = (estimate.expected_bytes, estimate.bound_bytes);
    let scale = Scale::that_tells_apart(bound, limit);
    write!(
        f,
        "needs {} ({} expected + {} margin) of {}",
        scale.write(bound),
        scale.write(expected),
        scale.write_rest(bound, expected),
        scale.write(limit),
    )
}
