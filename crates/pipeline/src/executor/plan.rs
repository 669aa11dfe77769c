use batchlora::SlotUpdate;

use crate::Microbatch;

/// What all groups do in one optimizer step.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// By group.
    pub groups: Vec<GroupPlan>,
}

/// What one group does in one optimizer step.
#[derive(Debug, Default)]
pub struct GroupPlan {
    /// The micro-batches; where there are fewer than the schedule has places, the last stay empty.
    pub microbatches: Vec<Microbatch>,
    /// One entry per slot. `None` leaves an adapter as it is; its gradient is kept, and the
    /// micro-batches of the steps that follow add to it until it is updated. It is lost when an
    /// adapter of the group comes or goes: see [`Pipeline::revision`](crate::Pipeline::revision).
    pub updates: Vec<Option<SlotUpdate>>,
}
