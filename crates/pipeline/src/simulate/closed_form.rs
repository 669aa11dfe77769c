/// The part of a stage's time that LoRAPP leaves idle once the pipeline is full:
/// `max{(D − 1 + N − L·N) / (D + N − 1), 0}` for D stages, L groups and N micro-batches a step.
///
/// It holds from one step of a group to its next, where all stages and all groups take the same
/// time, a backward pass in any proportion to a forward pass, and hops and optimizer steps take
/// none.
pub fn bubble_lorapp(stages: usize, groups: usize, microbatches: usize) -> f64 {
    let alone = (stages + microbatches) as f64 - 1.0;
    ((alone - (groups * microbatches) as f64) / alone).max(0.0)
}

/// The part of a stage's time that GPipe leaves idle: `(D − 1) / (N + D − 1)` for D stages and N
/// micro-batches a step, with any number of groups, since they follow one another. 1F1B has the
/// same; it differs in the activations it holds.
pub fn bubble_gpipe(stages: usize, microbatches: usize) -> f64 {
    (stages as f64 - 1.0) / ((stages + microbatches) as f64 - 1.0)
}
