use super::{
    Interval, Links, ScheduleCosts, Timeline, TimelineError, Transfer,
    order::{Order, receiver},
    report::StageReport,
};
use crate::schedule::Operation;

/// Executes every stage's list in order, each operation as soon as its stage is free and its input has
/// arrived.
///
/// Links take transfers in the order in which they are made, one at a time in each direction, while
/// stages compute.
///
/// # Errors
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
