use std::fmt;

/// What a load is predicted to take of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes that are known and not predicted: backbone, adapters, gradients, moments.
    pub exact_bytes: u64,
    /// Bytes in all that it takes for certain: what is known, or what was not enough for a load no
    /// larger, or its share of what was not enough for a larger one.
    pub least_bytes: u64,
    /// Bytes in all that are expected.
    pub expected_bytes: u64,
    /// Bytes in all that it should not exceed; what admission goes by. Never below `expected_bytes`.
    pub bound_bytes: u64,
    /// Where the bound is from.
    pub basis: Basis,
    /// Set if the load is so far beyond all that was measured that a smaller step should be measured
    /// first.
    pub probe: Option<Probe>,
}

impl Estimate {
    /// What the bound adds to what is expected.
    pub fn margin_bytes(&self) -> u64 {
        self.bound_bytes - self.expected_bytes
    }
}

/// Where a bound is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The analytic prior: too little was measured.
    Prior,
    /// A load that has run, scaled up: with b ≥ 0, a load with at most c times the tokens and the
    /// squared tokens takes at most c times the bytes.
    Proportion,
    /// The fit and its errors.
    Fitted,
    /// A load at least as large has run, and what the pools held then was enough.
    Ran,
    /// A load has run out of memory, and this one is larger or not small enough.
    RanOut,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prior => "estimated from the model's shape",
            Self::Proportion => "scaled up from a load that has run",
            Self::Fitted => "fitted to what was measured",
            Self::Ran => "a load as large has run",
            Self::RanOut => "a similar load has run out of memory",
        })
    }
}

/// A step to run and measure before a load is taken on: the candidate with everything else parked, or
/// with half of its micro-batch, such that it is no larger than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Most tokens for which there is a prediction; 0 if nothing was measured yet, and then the
    /// smallest step there is will do.
    pub tokens: u64,
    /// Most squared tokens for which there is a prediction; 0 as for `tokens`.
    pub squared_tokens: u64,
}
