use super::{Costs, Links, SimulationError, simulate};
use crate::schedule::{PipelineShape, Schedule};

/// The shape with the `extra_warmup` that gives most optimizer steps a second among all that keep at
/// most `most_in_flight` micro-batches on a stage; of equal ones, the least.
///
/// More is not always better: a longer warm-up orders a stage's passes for hops that are long, and
/// waits where they are short or groups are few. `shape.steps` are simulated each time; a dozen are
/// enough.
///
/// # Errors
///
/// If shape, costs and links differ in stages or groups.
pub fn best_warmup(
    schedule: Schedule,
    shape: PipelineShape,
    most_in_flight: usize,
    costs: &Costs,
    links: &Links,
) -> Result<PipelineShape, SimulationError> {
    // Beyond this a stage would hold more than there ever is to run before a group's step.
    let work = shape.groups * shape.microbatches;
    let most_in_flight = most_in_flight.min(work).saturating_sub(1);
    let hops = shape.stages.saturating_sub(1);
    let most_extra = most_in_flight
        .checked_div(hops)
        .map_or(0, |ahead| ahead.saturating_sub(1));
    let mut best = (shape.with_extra_warmup(0), 0.0);
    for extra in 0..=most_extra {
        let candidate = shape.with_extra_warmup(extra);
        let simulation = simulate(&schedule.operations(&candidate), costs, links)?;
        let rate = simulation
            .steady_steps_per_second()
            .unwrap_or(simulation.steps_per_second());
        // Equal but for rounding is equal.
        if rate > best.1 * (1.0 + 1e-9) {
            best = (candidate, rate);
        }
    }
    Ok(best.0)
}
