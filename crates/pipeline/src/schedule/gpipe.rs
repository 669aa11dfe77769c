use super::{Operation, PipelineShape};

/// All forward passes of a group's step, then all backward passes, in the same order on every
/// stage. A stage holds the activations of all N micro-batches.
pub(super) fn operations(shape: &PipelineShape) -> Vec<Vec<Operation>> {
    if shape.microbatches == 0 {
        return vec![Vec::new(); shape.stages];
    }
    let mut list = Vec::new();
    for step in 0..shape.steps {
        for group in 0..shape.groups {
            list.extend(
                (0..shape.microbatches).map(|microbatch| Operation::Forward {
                    group,
                    microbatch,
                    step,
                }),
            );
            list.extend(
                (0..shape.microbatches).map(|microbatch| Operation::Backward {
                    group,
                    microbatch,
                    step,
                }),
            );
            list.push(Operation::Step { group, step });
        }
    }
    vec![list; shape.stages]
}
