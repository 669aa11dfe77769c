use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use loraloom_scheduler::TaskId;

use super::Task;

/// Most iterations between a snapshot and the start of a window; those of the window come on top.
const LONGEST_LOOK_BACK: u64 = 32;

/// Age at which a snapshot is renewed at the next step.
const OLDEST: Duration = Duration::from_mins(1);

/// The state to return to if memory runs out.
#[derive(Debug, Default)]
pub(crate) struct Rewind {
    pub(crate) snapshot: Option<Snapshot>,
    /// Tasks that were admitted since, as they were then.
    pub(crate) arrivals: BTreeMap<TaskId, Task>,
}

/// The running tasks with their adapters, after an iteration.
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

    /// Whether it has the same tasks in the same places, and was made shortly before `iteration`.
    pub(crate) fn serves(&self, groups: &[Vec<TaskId>], iteration: u64) -> bool {
        let recent = iteration < self.iteration + LONGEST_LOOK_BACK;
        recent && Instant::now() < self.oldest() && self.groups == groups
    }

    /// When it must be renewed.
    pub(crate) fn oldest(&self) -> Instant {
        self.made + OLDEST
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{LONGEST_LOOK_BACK, Snapshot};

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
            copy.serves(&[], iteration)
        };
        assert!(serves(50, 5 + LONGEST_LOOK_BACK - 1));
        assert!(!serves(70, 5));
        assert!(!serves(0, 5 + LONGEST_LOOK_BACK));
    }
}
