use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{
    SimulationError,
    report::{Interval, StageReport, Window},
};
use crate::schedule::Operation;

/// Which micro-batch a pass works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct MicrobatchKey {
    group: usize,
    microbatch: usize,
    step: usize,
}

impl MicrobatchKey {
    /// `None` for an optimizer step.
    pub(super) fn of(operation: Operation) -> Option<Self> {
        match operation {
            Operation::Forward {
                group,
                microbatch,
                step,
            }
            | Operation::Backward {
                group,
                microbatch,
                step,
            } => Some(Self {
                group,
                microbatch,
                step,
            }),
            Operation::Step { .. } => None,
        }
    }
}

/// A stage on its way through its list.
pub(super) struct Stage<'a> {
    pub(super) index: usize,
    list: &'a [Operation],
    intervals: Vec<Interval>,
    /// Micro-batches whose activations it holds.
    held: HashSet<MicrobatchKey>,
    /// Backward passes still to come, by group and step.
    open_backwards: HashMap<(usize, usize), usize>,
    /// Optimizer steps still to come, by group.
    open_steps: HashMap<usize, BTreeSet<usize>>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(index: usize, list: &'a [Operation]) -> Result<Self, SimulationError> {
        let mut seen = HashSet::new();
        let mut open_backwards = HashMap::new();
        let mut open_steps: HashMap<usize, BTreeSet<usize>> = HashMap::new();
        for (position, &operation) in list.iter().enumerate() {
            if !seen.insert(operation) {
                return Err(SimulationError::Repeated {
                    stage: index,
                    position,
                    operation,
                });
            }
            match operation {
                Operation::Forward { .. } => {}
                Operation::Backward { group, step, .. } => {
                    *open_backwards.entry((group, step)).or_insert(0) += 1;
                }
                Operation::Step { group, step } => {
                    open_steps.entry(group).or_default().insert(step);
                }
            }
        }
        Ok(Self {
            index,
            list,
            intervals: Vec::with_capacity(list.len()),
            held: HashSet::new(),
            open_backwards,
            open_steps,
        })
    }

    /// The next operation; `None` at the end of the list.
    pub(super) fn waiting(&self) -> Option<Operation> {
        self.list.get(self.intervals.len()).copied()
    }

    pub(super) fn free_at(&self) -> f64 {
        self.intervals.last().map_or(0.0, |interval| interval.end)
    }

    /// Whether what the operation needs of its own stage has been done.
    pub(super) fn allows(&self, operation: Operation) -> bool {
        match operation {
            Operation::Forward { group, step, .. } => {
                let open = self.open_steps.get(&group).and_then(BTreeSet::first);
                open.is_none_or(|&open| open >= step)
            }
            Operation::Backward { .. } => {
                MicrobatchKey::of(operation).is_some_and(|key| self.held.contains(&key))
            }
            Operation::Step { group, step } => {
                let open = self.open_backwards.get(&(group, step));
                open.is_none_or(|&open| open == 0)
            }
        }
    }

    pub(super) fn execute(&mut self, interval: Interval) {
        self.intervals.push(interval);
        if let Some(key) = MicrobatchKey::of(interval.operation) {
            // Absent for a forward pass, present for a backward pass.
            if !self.held.remove(&key) {
                self.held.insert(key);
            }
        }
        match interval.operation {
            Operation::Forward { .. } => {}
            Operation::Backward { group, step, .. } => {
                if let Some(open) = self.open_backwards.get_mut(&(group, step)) {
                    *open -= 1;
                }
            }
            Operation::Step { group, step } => {
                if let Some(open) = self.open_steps.get_mut(&group) {
                    open.remove(&step);
                }
            }
        }
    }

    pub(super) fn deadlock(&self) -> SimulationError {
        let position = self.intervals.len();
        SimulationError::Deadlock {
            stage: self.index,
            position,
            operation: self.list[position],
        }
    }

    pub(super) fn report(self, makespan: f64) -> StageReport {
        StageReport {
            whole: window(makespan, &self.intervals),
            steady: steady(&self.intervals),
            in_flight: in_flight(&self.intervals),
            intervals: self.intervals,
        }
    }
}

fn window(seconds: f64, intervals: &[Interval]) -> Window {
    Window {
        seconds,
        busy: intervals
            .iter()
            .map(|interval| interval.end - interval.start)
            .sum(),
        steps: intervals
            .iter()
            .filter(|interval| matches!(interval.operation, Operation::Step { .. }))
            .count(),
    }
}

/// Between two steps' first forward passes lie whole rounds, so each group's work counts equally
/// often.
fn steady(intervals: &[Interval]) -> Option<Window> {
    let mut firsts = BTreeMap::new();
    for (position, interval) in intervals.iter().enumerate() {
        if let Operation::Forward { step, .. } = interval.operation {
            firsts.entry(step).or_insert(position);
        }
    }
    let firsts: Vec<usize> = firsts.into_values().collect();
    let (from, to) = (*firsts.get(firsts.len() / 2)?, *firsts.last()?);
    (from < to).then(|| {
        let seconds = intervals[to].start - intervals[from].start;
        window(seconds, &intervals[from..to])
    })
}

fn in_flight(intervals: &[Interval]) -> Vec<(f64, usize)> {
    let mut count = 0;
    let mut changes = Vec::new();
    for interval in intervals {
        match interval.operation {
            Operation::Forward { .. } => {
                count += 1;
                changes.push((interval.start, count));
            }
            Operation::Backward { .. } => {
                count -= 1;
                changes.push((interval.end, count));
            }
            Operation::Step { .. } => {}
        }
    }
    changes
}
