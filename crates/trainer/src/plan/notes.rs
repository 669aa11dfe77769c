use loraloom_config::{BalanceChoice, RunConfig};
use loraloom_pipeline::Partitions;

use super::Speeds;

/// Sentences on the assumptions and omissions of a plan.
pub(super) fn notes(
    speeds: Speeds,
    stages: usize,
    microbatches: &[usize],
    waiting: usize,
    tasks: usize,
) -> Vec<String> {
    let mut notes = vec![
        "activations are those kept for the backward pass if the longest samples of all tasks of a \
         group are in one micro-batch; copies are those to which a run returns if memory runs out, on a \
         GPU as much as its pools held besides when measured; buffers are those of the loss or of a \
         layer's backward pass; all is the peak, which is less than the sum; attention scores, data, \
         and the overhead of the device's driver are not counted"
            .to_owned(),
        "operations are those of matrix products, for the average step of the data; norms, optimizer \
         and evaluation are not counted"
            .to_owned(),
    ];
    if stages > 1 {
        notes.push(
            "all stages are assumed to be equally fast; iterations follow one another without a pause, \
             except in the idle time with drained iterations"
                .to_owned(),
        );
        if microbatches.iter().min() != microbatches.iter().max() {
            notes.push(
                "groups have different numbers of micro-batches; the simulation spreads each group's \
                 step evenly over the largest number"
                    .to_owned(),
            );
        }
        if speeds.link_bytes_per_second.is_none() {
            notes.push("transfers between stages are assumed to take no time".to_owned());
        }
    }
    if speeds.tflops.is_none() {
        notes.push(
            "the speed of the stages is unknown: the chart assumes 1 TFLOP/s each".to_owned(),
        );
    }
    if waiting > 0 {
        notes.push(format!(
            "{waiting} of {tasks} adapters wait and are in no group; a run may admit them once it has \
             measured the memory of the others"
        ));
    }
    notes
}

/// A sentence on staggering, if layers are staggered or the configuration asks for it.
pub(super) fn staggered(config: &RunConfig, partitions: &Partitions) -> Option<String> {
    if !partitions.are_staggered() {
        let asked = config.pipeline.balance == BalanceChoice::Staggered;
        return asked.then(|| NOT_STAGGERED.to_owned());
    }
    let stages = partitions.stages();
    let held: usize = stages.iter().map(|stage| stage.held().len()).sum();
    let of_group = partitions.of_group(0);
    let layers: usize = of_group.iter().map(ExactSizeIterator::len).sum();
    Some(format!(
        "groups have their layers on different stages: together the stages hold {held} decoder layers \
         of a model with {layers}, which `weights` counts; all else counts the layers of each group"
    ))
}

/// The reason why layers are not staggered although the configuration asks for it.
pub(crate) const NOT_STAGGERED: &str = "`pipeline.balance: staggered` would be less than \
    0.1 % faster: every group has the same layers on each stage";
