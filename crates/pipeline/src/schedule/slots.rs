use super::{Operation, PipelineShape};

/// The lists that follow from the slot of each group's first micro-batch in each step; the others
/// take the slots after it.
///
/// A slot is two passes long. The micro-batch of slot τ starts forward on the last stage p passes
/// after it started on the first, p = D − 1 without extra warm-up, turns at once, and goes
/// back as it came. So on a stage r passes before the last it starts forward at 2τ + p − r and
/// backward at 2τ + p + r + 1. On one stage the former are all even and the latter all odd, or the
/// reverse, so no two passes of different slots meet. Lists sorted by such a clock can be executed
/// with any costs: the clock itself proves that no wait is circular.
pub(super) fn operations(
    shape: &PipelineShape,
    first_slot: impl Fn(usize, usize) -> usize,
) -> Vec<Vec<Operation>> {
    (0..shape.stages)
        .map(|stage| {
            let mut timed = Vec::new();
            let (whole_way, rest) = (shape.passes_to_last(0), shape.passes_to_last(stage));
            for step in 0..shape.steps {
                for group in 0..shape.groups {
                    let first = first_slot(step, group);
                    for microbatch in 0..shape.microbatches {
                        let turn = 2 * (first + microbatch) + whole_way;
                        let back = turn + rest + 1;
                        let forward = Operation::Forward {
                            group,
                            microbatch,
                            step,
                        };
                        let backward = Operation::Backward {
                            group,
                            microbatch,
                            step,
                        };
                        timed.push((turn - rest, forward));
                        timed.push((back, backward));
                        if microbatch + 1 == shape.microbatches {
                            timed.push((back, Operation::Step { group, step }));
                        }
                    }
                }
            }
            // Stable: an optimizer step stays behind the backward pass it shares its time with.
            timed.sort_by_key(|&(time, _)| time);
            timed.into_iter().map(|(_, operation)| operation).collect()
        })
        .collect()
}
