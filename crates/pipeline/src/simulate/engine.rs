use std::collections::HashMap;

use super::{
    Costs, Interval, Links, SimulationError,
    report::{Simulation, Transfer},
    stage::{MicrobatchKey, Stage},
};
use crate::schedule::Operation;

/// Executes every stage's list in order, each operation as soon as its stage is free and what it
/// needs is there:
///
/// - a forward pass, its activations from the stage below (the first stage has its rows), and on
///   its own stage all earlier optimizer steps of its group that are in the list;
/// - a backward pass, its forward pass on this stage and the gradient from the stage above (the last
///   stage has the loss);
/// - an optimizer step, the backward passes on this stage that count towards it.
///
/// Links take transfers in the order in which they are made, one at a time in each direction, while
/// stages compute.
///
/// # Errors
///
/// If lists, costs and links differ in stages or groups, an operation appears twice, or a stage waits
/// for what never comes.
pub fn simulate(
    lists: &[Vec<Operation>],
    costs: &Costs,
    links: &Links,
) -> Result<Simulation, SimulationError> {
    let operations = lists.iter().flatten();
    let groups = operations.map(|operation| operation.group() + 1).max();
    costs.check(lists.len(), groups.unwrap_or(0))?;
    links.check(lists.len(), groups.unwrap_or(0))?;

    let mut engine = Engine {
        costs,
        links,
        activations: vec![HashMap::new(); lists.len()],
        gradients: vec![HashMap::new(); lists.len()],
        free_downward: vec![0.0; lists.len()],
        free_upward: vec![0.0; lists.len()],
        transfers: Vec::new(),
    };
    let mut stages = lists
        .iter()
        .enumerate()
        .map(|(index, list)| Stage::new(index, list))
        .collect::<Result<Vec<_>, _>>()?;

    // A start depends on nothing but earlier ends, so the order in which stages are visited here
    // changes no time.
    let mut progress = true;
    while progress {
        progress = false;
        for stage in &mut stages {
            while let Some(interval) = engine.next(stage) {
                stage.execute(interval);
                engine.send(&interval);
                progress = true;
            }
        }
    }
    if let Some(stuck) = stages.iter().find(|stage| stage.waiting().is_some()) {
        return Err(stuck.deadlock());
    }

    let ends = stages.iter().map(Stage::free_at);
    let makespan = ends.fold(0.0, f64::max);
    let mut transfers = engine.transfers;
    transfers.sort_by(|left, right| {
        let times = left.start.total_cmp(&right.start);
        left.link.cmp(&right.link).then(times)
    });
    Ok(Simulation {
        makespan,
        stages: stages
            .into_iter()
            .map(|stage| stage.report(makespan))
            .collect(),
        transfers,
    })
}

/// What lies between stages.
struct Engine<'a> {
    costs: &'a Costs,
    links: &'a Links,
    /// By receiving stage: when each micro-batch's activations, or their gradient, are there.
    activations: Vec<HashMap<MicrobatchKey, f64>>,
    gradients: Vec<HashMap<MicrobatchKey, f64>>,
    /// By sending stage: when the direction can take the next transfer. Downward is towards the
    /// last stage.
    free_downward: Vec<f64>,
    free_upward: Vec<f64>,
    transfers: Vec<Transfer>,
}

impl Engine<'_> {
    /// When the stage's next operation runs; `None` at the end, or if it cannot start yet.
    fn next(&self, stage: &Stage<'_>) -> Option<Interval> {
        let operation = stage.waiting()?;
        if !stage.allows(operation) {
            return None;
        }
        let first = stage.index == 0;
        let last = stage.index + 1 == self.activations.len();
        let costs = self.costs.of(stage.index, operation.group());
        let (ready, seconds) = match operation {
            Operation::Forward { .. } if first => (0.0, costs.forward),
            Operation::Forward { .. } => {
                let key = MicrobatchKey::of(operation)?;
                (*self.activations[stage.index].get(&key)?, costs.forward)
            }
            Operation::Backward { .. } if last => (0.0, costs.backward),
            Operation::Backward { .. } => {
                let key = MicrobatchKey::of(operation)?;
                (*self.gradients[stage.index].get(&key)?, costs.backward)
            }
            Operation::Step { .. } => (0.0, costs.step),
        };
        let start = stage.free_at().max(ready);
        Some(Interval {
            stage: stage.index,
            operation,
            start,
            end: start + seconds,
        })
    }

    /// Hands on what an operation made.
    fn send(&mut self, done: &Interval) {
        let Some(key) = MicrobatchKey::of(done.operation) else {
            return;
        };
        let downward = matches!(done.operation, Operation::Forward { .. });
        let (link, free, arrivals) = if downward {
            let Some(arrivals) = self.activations.get_mut(done.stage + 1) else {
                return;
            };
            (done.stage, &mut self.free_downward[done.stage], arrivals)
        } else {
            let Some(below) = done.stage.checked_sub(1) else {
                return;
            };
            let arrivals = &mut self.gradients[below];
            (below, &mut self.free_upward[done.stage], arrivals)
        };
        let speed = self.links.link(link);
        let start = done.end.max(*free);
        *free = start + self.links.bytes(done.operation.group()) / speed.bytes_per_second;
        let end = *free + speed.latency;
        arrivals.insert(key, end);
        self.transfers.push(Transfer {
            link,
            operation: done.operation,
            start,
            end,
        });
    }
}
