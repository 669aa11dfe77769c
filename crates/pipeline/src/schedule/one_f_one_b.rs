use super::{Operation, PipelineShape, slots};

/// A group enters when the one before has left, as in a trainer that knows one model and one
/// optimizer.
pub(super) fn operations(shape: &PipelineShape) -> Vec<Vec<Operation>> {
    slots::operations(shape, |step, group| {
        (step * shape.groups + group) * shape.slots_per_step()
    })
}
