use std::collections::{BTreeSet, HashMap, HashSet};

use super::TimelineError;
use crate::schedule::Operation;

/// All stages' operations in one order, each after the operations that it needs, and a clock.
///
/// An operation comes after:
///
/// - a forward pass, the activations from the stage below (the first stage has its rows), and on its
///   own stage all earlier optimizer steps of its group that are in the list;
/// - a backward pass, its forward pass on this stage and the gradient from the stage above (the last
///   stage has the loss);
/// - an optimizer step, the backward passes on this stage that count towards it.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) operations: Vec<Ordered>,
    /// By stage: when it has finished.
    free: Vec<f64>,
    /// By operation: when the neighbouring stage can use its result.
    arrivals: Vec<f64>,
}

/// An operation of a stage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ordered {
    pub(crate) stage: usize,
    pub(crate) operation: Operation,
    /// Position of the neighbouring stage's pass whose result it takes.
    needs: Option<usize>,
}

/// The stage that takes the result of a pass on `stage`.
pub(super) fn receiver(stage: usize, stages: usize, operation: Operation) -> Option<usize> {
    match operation {
        Operation::Forward { .. } => Some(stage + 1).filter(|&above| above < stages),
        Operation::Backward { .. } => stage.checked_sub(1),
        Operation::Step { .. } => None,
    }
}

impl Order {
    /// # Errors
    /// If a list has an operation twice, or a stage waits for an operation that never comes.
    pub(crate) fn new(lists: &[Vec<Operation>]) -> Result<Self, TimelineError> {
        let stages = lists.iter().enumerate();
        let stages = stages.map(|(index, list)| Progress::new(index, list));
        let mut stages = stages.collect::<Result<Vec<_>, _>>()?;
        let mut operations: Vec<Ordered> = Vec::new();
        // Positions of passes, by receiving stage and operation.
        let mut sent: HashMap<(usize, Operation), usize> = HashMap::new();
        let mut progress = true;
        while progress {
            progress = false;
            for (stage, state) in stages.iter_mut().enumerate() {
                while let Some(operation) = state.next() {
                    let takes = match operation {
                        Operation::Forward { .. } => stage > 0,
                        Operation::Backward { .. } => stage + 1 < lists.len(),
                        Operation::Step { .. } => false,
                    };
                    let needs = sent.get(&(stage, operation)).copied();
                    if takes && needs.is_none() {
                        break;
                    }
                    if let Some(receiver) = receiver(stage, lists.len(), operation) {
                        sent.insert((receiver, operation), operations.len());
                    }
                    operations.push(Ordered {
                        stage,
                        operation,
                        needs,
                    });
                    state.advance(operation);
                    progress = true;
                }
            }
        }
        if let Some(stuck) = stages.iter().find_map(Progress::deadlock) {
            return Err(stuck);
        }
        Ok(Self {
            free: vec![0.0; lists.len()],
            arrivals: vec![0.0; operations.len()],
            operations,
        })
    }

    /// Starts each operation as soon as its stage is free and its input has arrived. `execute` gets
    /// its position, the operation and its start, and returns its end and the arrival of its result.
    pub(crate) fn run(&mut self, mut execute: impl FnMut(usize, &Ordered, f64) -> (f64, f64)) {
        self.free.fill(0.0);
        for (index, ordered) in self.operations.iter().enumerate() {
            let mut start = self.free[ordered.stage];
            if let Some(needs) = ordered.needs {
                start = start.max(self.arrivals[needs]);
            }
            let (end, arrival) = execute(index, ordered, start);
            self.free[ordered.stage] = end;
            self.arrivals[index] = arrival;
        }
    }
}

/// A stage's progress through its list.
struct Progress<'a> {
    stage: usize,
    list: &'a [Operation],
    /// Position of the next operation.
    position: usize,
    /// Micro-batches between their forward and backward pass, by their backward pass.
    held: HashSet<Operation>,
    /// Number of backward passes still to come, by group and iteration.
    open_backwards: HashMap<(usize, usize), usize>,
    /// Optimizer steps still to come, by group.
    open_steps: HashMap<usize, BTreeSet<usize>>,
}

impl<'a> Progress<'a> {
    fn new(stage: usize, list: &'a [Operation]) -> Result<Self, TimelineError> {
        let mut seen = HashSet::new();
        let mut open_backwards = HashMap::new();
        let mut open_steps: HashMap<usize, BTreeSet<usize>> = HashMap::new();
        for (position, &operation) in list.iter().enumerate() {
            if !seen.insert(operation) {
                return Err(TimelineError::Repeated {
                    stage,
                    position,
                    operation,
                });
            }
            match operation {
                Operation::Forward { .. } => {}
                Operation::Backward {
                    group, iteration, ..
                } => {
                    *open_backwards.entry((group, iteration)).or_insert(0) += 1;
                }
                Operation::Step { group, iteration } => {
                    open_steps.entry(group).or_default().insert(iteration);
                }
            }
        }
        Ok(Self {
            stage,
            list,
            position: 0,
            held: HashSet::new(),
            open_backwards,
            open_steps,
        })
    }

    /// The next operation, unless it waits for one of its own stage.
    fn next(&self) -> Option<Operation> {
        let operation = *self.list.get(self.position)?;
        let allowed = match operation {
            Operation::Forward {
                group, iteration, ..
            } => {
                let open = self.open_steps.get(&group).and_then(BTreeSet::first);
                open.is_none_or(|&open| open >= iteration)
            }
            Operation::Backward { .. } => self.held.contains(&operation),
            Operation::Step { group, iteration } => {
                let open = self.open_backwards.get(&(group, iteration));
                open.is_none_or(|&open| open == 0)
            }
        };
        allowed.then_some(operation)
    }

    fn advance(&mut self, operation: Operation) {
        self.position += 1;
        match operation {
            Operation::Forward {
                group,
                microbatch,
                iteration,
            } => {
                self.held.insert(Operation::Backward {
                    group,
                    microbatch,
                    iteration,
                });
            }
            Operation::Backward {
                group, iteration, ..
            } => {
                self.held.remove(&operation);
                if let Some(open) = self.open_backwards.get_mut(&(group, iteration)) {
                    *open -= 1;
                }
            }
            Operation::Step { group, iteration } => {
                if let Some(open) = self.open_steps.get_mut(&group) {
                    open.remove(&iteration);
                }
            }
        }
    }

    /// The error of a stage that has not come to the end of its list.
    fn deadlock(&self) -> Option<TimelineError> {
        let operation = *self.list.get(self.position)?;
        Some(TimelineError::Deadlock {
            stage: self.stage,
            position: self.position,
            operation,
        })
    }
}

/// One order of all stages' operations, as `(stage, operation)`, in which a single thread can submit
/// them to devices that work asynchronously.
///
/// It keeps each stage's order, and the operations that one needs come before it. It follows a clock
/// on which all passes take the same time, so no stage's next operation comes after work that other
/// stages only do later.
///
/// # Errors
/// If the lists deadlock or an operation is repeated.
pub fn submission_order(
    lists: &[Vec<Operation>],
) -> Result<Vec<(usize, Operation)>, TimelineError> {
    let mut order = Order::new(lists)?;
    let mut timed = Vec::with_capacity(order.operations.len());
    order.run(|_, ordered, start| {
        timed.push((start, ordered.stage, ordered.operation));
        let seconds = match ordered.operation {
            Operation::Forward { .. } | Operation::Backward { .. } => 1.0,
            Operation::Step { .. } => 0.0,
        };
        (start + seconds, start + seconds)
    });
    // Stable, so a stage's operations that start together, a step and the pass after it, stay in
    // order. The input of a pass was computed a whole pass earlier.
    timed.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
    let timed = timed.into_iter();
    Ok(timed
        .map(|(_, stage, operation)| (stage, operation))
        .collect())
}
