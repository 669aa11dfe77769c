use super::{
    Interval, Links, ScheduleCosts, Timeline, TimelineError, Transfer,
    order::{Order, receiver},
    report::StageReport,
};
use crate::schedule::{Operation, PipelineShape, Schedule, operations};

/// Executes every stage's list in order, each operation as soon as its stage is free and its input has
/// arrived.
///
/// Links take transfers in the order in which they are made, one at a time in each direction, while
/// stages compute.
///
/// # Errors
///
/// If lists, costs and links differ in stages or groups, an operation appears twice, or a stage waits
/// for an operation that never comes.
pub fn simulate(
    lists: &[Vec<Operation>],
    costs: &ScheduleCosts,
    links: &Links,
) -> Result<Timeline, TimelineError> {
    let stages = lists.len();
    let groups = lists
        .iter()
        .flatten()
        .map(|operation| operation.group() + 1);
    let groups = groups.max().unwrap_or(0);
    costs.check(stages, groups)?;
    links.check(stages, groups)?;

    let mut order = Order::new(lists)?;
    let mut intervals: Vec<Vec<Interval>> = vec![Vec::new(); stages];
    let mut transfers = Vec::new();
    // By sending stage: when its link can take the next transfer towards the last stage, and towards
    // the first.
    let mut free = vec![[0.0; 2]; stages];
    order.run(|_, ordered, start| {
        let (stage, operation) = (ordered.stage, ordered.operation);
        let group = operation.group();
        let costs = costs.of(stage, group);
        let (seconds, direction) = match operation {
            Operation::Forward { .. } => (costs.forward, 0),
            Operation::Backward { .. } => (costs.backward, 1),
            Operation::Step { .. } => (costs.step, 0),
        };
        let end = start + seconds;
        intervals[stage].push(Interval {
            stage,
            operation,
            start,
            end,
        });
        let Some(receiver) = receiver(stage, stages, operation) else {
            return (end, end);
        };
        let link = stage.min(receiver);
        let speed = links.link(link);
        let free = &mut free[stage][direction];
        let start = end.max(*free);
        *free = start + links.bytes(group) / speed.bytes_per_second;
        let arrival = *free + speed.latency;
        transfers.push(Transfer {
            link,
            operation,
            start,
            end: arrival,
        });
        (end, arrival)
    });

    let ends = intervals.iter().filter_map(|stage| stage.last());
    let makespan = ends.map(|interval| interval.end).fold(0.0, f64::max);
    transfers.sort_by(|left, right| {
        let times = left.start.total_cmp(&right.start);
        left.link.cmp(&right.link).then(times)
    });
    let report = |intervals| StageReport::new(makespan, intervals);
    Ok(Timeline {
        makespan,
        stages: intervals.into_iter().map(report).collect(),
        transfers,
    })
}

/// The shape with the `extra_warmup` of the most optimizer steps a second among those that keep at
/// most `most_in_flight` micro-batches on a stage; of equal ones, the least.
///
/// More is not always better: a longer warm-up orders a stage's passes for long transfers, and waits
/// where they are short or groups are few. `shape.steps` are simulated each time; a dozen are enough.
///
/// # Errors
///
/// If shape, costs and links differ in stages or groups.
pub fn best_warmup(
    schedule: Schedule,
    shape: PipelineShape,
    most_in_flight: usize,
    costs: &ScheduleCosts,
    links: &Links,
) -> Result<PipelineShape, TimelineError> {
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
        let simulation = simulate(&operations(schedule, &candidate), costs, links)?;
        let rate = simulation
            .steady_steps_per_second()
            .unwrap_or(simulation.steps_per_second());
        // Differences of rounding do not count.
        if rate > best.1 * (1.0 + 1e-9) {
            best = (candidate, rate);
        }
    }
    Ok(best.0)
}
