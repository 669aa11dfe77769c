use std::time::Instant;

use batchlora::SlotUpdate;

use super::times::TransferTimes;
use crate::Microbatch;

/// The work of all groups in one optimizer step.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// By group.
    pub groups: Vec<GroupPlan>,
}

/// The work of one group in one optimizer step.
#[derive(Debug, Default)]
pub struct GroupPlan {
    /// The micro-batches. Where there are fewer than the schedule has places, the last places stay
    /// empty.
    pub microbatches: Vec<Microbatch>,
    /// One entry per slot. `None` leaves an adapter as it is and keeps its gradient, to which the
    /// micro-batches of later steps add until it is updated. The gradient is lost when an adapter
    /// joins or leaves the group: see [`Pipeline::revision`](crate::Pipeline::revision).
    pub updates: Vec<Option<SlotUpdate>>,
}

/// Results of one optimizer step of all groups.
#[derive(Debug, Clone)]
pub struct StepOutcome {
    /// Step of the run, counted from 0.
    pub step: usize,
    /// By group.
    pub groups: Vec<GroupOutcome>,
    /// When the last result was read.
    pub at: Instant,
    /// Seconds that each stage worked on the step; `None` where calls return before the work is done.
    pub busy: Vec<Option<f64>>,
    /// Transfers between stages in different processes; `None` where there are none, or a stage does
    /// not know when its passes end.
    pub transfers: Option<TransferTimes>,
    /// Largest number of bytes that this process had allocated while a CPU stage of it worked on the
    /// step; `None` without such a stage, or where allocations are not
    /// [counted](crate::HostMemory). With several such stages, which work on several steps at a time,
    /// the peak of all.
    pub host_peak_bytes: Option<u64>,
}

/// Results of one optimizer step of a group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupOutcome {
    /// Cross-entropy of every target in nats, by micro-batch in the order of its targets.
    pub losses: Vec<Vec<f32>>,
    /// Square of the global norm of each slot's gradient, before clipping.
    pub squared_norms: Vec<f32>,
}
