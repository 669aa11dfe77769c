use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use loraloom_scheduler::TaskId;

use super::Task;

/// Most iterations between a snapshot and the start of a window; those of the window come on top.
const LONGEST_LOOK_BACK: u64 = 32;

/// What to go back to if memory runs out.
#[derive(Debug)]
pub(crate) struct Rewind {
    pub(crate) snapshot: Option<Snapshot>,
    /// Time after which a copy is made again at the next step.
    pub(crate) oldest: Duration,
    /// Tasks that were let in since, as they came.
    pub(crate) arrivals: BTreeMap<TaskId, Task>,
}

impl Default for Rewind {
    fn default() -> Self {
        Self {
            snapshot: None,
            oldest: Duration::from_mins(1),
            arrivals: BTreeMap::new(),
        }
    }
}

impl Rewind {
    /// When the copy is made again at the latest.
    pub(crate) fn renew(&self) -> Option<Instant> {
        Some(self.snapshot.as_ref()?.made + self.oldest)
    }

    /// True if the copy has the same tasks in the same places, and was made not long before `iteration`.
    pub(crate) fn serves(&self, groups: &[Vec<TaskId>], iteration: u64) -> bool {
        let is_young = self.renew().is_some_and(|renew| Instant::now() < renew);
        is_young
            && self.snapshot.as_ref().is_some_and(|copy| {
                copy.groups == groups && iteration < copy.iteration + LONGEST_LOOK_BACK
            })
    }
}

/// The running tasks with their adapters, as they were at an iteration's end.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    made: Instant,
    pub(crate) iteration: u64,
    pub(crate) tokens: u64,
    groups: Vec<Vec<TaskId>>,
    /// As if they were parked.
    tasks: Vec<Task>,
}

impl Snapshot {
    /// Tasks in the order of these groups and of the slots in each.
    pub(crate) fn new(
        iteration: u64,
        tokens: u64,
        groups: Vec<Vec<TaskId>>,
        tasks: Vec<Task>,
    ) -> Self {
        Self {
            made: Instant::now(),
            iteration,
            tokens,
            groups,
            tasks,
        }
    }

    /// Its tasks, each with its group.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = (usize, &Task)> + Clone {
        let groups = self.groups.iter().enumerate();
        let group_of = groups.flat_map(|(group, members)| members.iter().map(move |_| group));
        group_of.zip(&self.tasks)
    }

    pub(crate) fn tasks_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.tasks.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{LONGEST_LOOK_BACK, Rewind, Snapshot};

    #[test]
    fn old_copies_are_made_again() {
        let serves = |age, iteration| {
            let made = Instant::now().checked_sub(Duration::from_secs(age));
            let copy = Snapshot {
                made: made.expect("a machine that is up for two minutes"),
                iteration: 5,
                tokens: 0,
                groups: Vec::new(),
                tasks: Vec::new(),
            };
            let rewind = Rewind {
                snapshot: Some(copy),
                ..Rewind::default()
            };
            rewind.serves(&[], iteration)
        };
        assert!(serves(50, 5 + LONGEST_LOOK_BACK - 1));
        assert!(!serves(70, 5));
        assert!(!serves(0, 5 + LONGEST_LOOK_BACK));
    }
}
