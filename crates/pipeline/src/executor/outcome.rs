use std::time::Instant;

use super::transfers::Transfers;

/// What one optimizer step of all groups came to.
#[derive(Debug, Clone)]
pub struct StepOutcome {
    /// Step of the run, counted from 0.
    pub step: usize,
    /// By group.
    pub groups: Vec<GroupOutcome>,
    /// When the last result was there.
    pub at: Instant,
    /// Seconds that each stage spent on the step; `None` where passes are only handed over.
    pub busy: Vec<Option<f64>>,
    /// Hops between stages in different processes; `None` where there are none, or a stage cannot
    /// tell when its passes end.
    pub transfers: Option<Transfers>,
    /// Most bytes that this process had allocated while a stage that computes in its memory worked on
    /// the step; `None` where there is none, or nobody [counts](crate::HostMemory). Of several such
    /// stages, which are at several steps at once, those of all.
    pub host_peak_bytes: Option<u64>,
}

/// What one optimizer step of a group came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupOutcome {
    /// Cross-entropy of every target in nats, by micro-batch in the order of its targets.
    pub losses: Vec<Vec<f32>>,
    /// Square of the global norm of each slot's gradient, before clipping.
    pub squared_norms: Vec<f32>,
}
