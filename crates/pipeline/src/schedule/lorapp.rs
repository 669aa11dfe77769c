use super::{Operation, PipelineShape, slots};

/// Groups take turns, N slots each. A round is as long as all groups' slots, or as one group's way
/// down the pipeline and up again where that is longer: slots stay empty only then.
pub(super) fn operations(shape: &PipelineShape) -> Vec<Vec<Operation>> {
    let round = shape
        .slots_per_step()
        .max(shape.groups * shape.microbatches);
    slots::operations(shape, |step, group| {
        step * round + group * shape.microbatches
    })
}
