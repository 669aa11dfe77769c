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
        "activations are what the operators keep for the backward pass, were the longest samples of \
         all tasks of a group in one micro-batch; what a pass needs while it runs (attention scores, \
         a part of the logits, gradients on their way), and what the device's allocator and driver \
         take, comes on top"
            .to_owned(),
        "operations are those of products, for the average step of the data; norms, optimizer and \
         evaluation are not counted"
            .to_owned(),
    ];
    if stages > 1 {
        notes.push(
            "all stages are taken to be equally fast; iterations follow one another without a pause, \
             except where the bubble is said to be drained"
                .to_owned(),
        );
        if microbatches.iter().min() != microbatches.iter().max() {
            notes.push(
                "groups have different numbers of micro-batches; simulated, each group's step is \
                 spread evenly over the most of them"
                    .to_owned(),
            );
        }
        if speeds.link_bytes_per_second.is_none() {
            notes.push("transfers between stages are taken to take no time".to_owned());
        }
    }
    if speeds.tflops.is_none() {
        notes.push(
            "the speed of the stages is not known: the chart is drawn for 1 TFLOP/s each"
                .to_owned(),
        );
    }
    if waiting > 0 {
        notes.push(format!(
            "{waiting} of {tasks} adapters wait for a place and are in no group; a run may let them in \
             once it has measured what the others take"
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
        "groups have their layers on different stages: the stages hold {held} decoder layers of the \
         model's {layers}, which `weights` counts; everything else counts what each group has there"
    ))
}

/// The reason why layers are not staggered although the configuration asks for it.
pub(crate) const NOT_STAGGERED: &str = "`pipeline.balance: staggered` would be faster by less than a \
                                        thousandth: every group has the same layers on each stage";
