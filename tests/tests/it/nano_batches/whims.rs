//! A scheduler that changes its mind.

use std::collections::BTreeMap;

use loraloom_scheduler::{
    Admission, Decision, Member, Outcome, Parking, Scheduler, SchedulerError, Task, TaskId,
    TaskState,
};
use loraloom_tests::Random;

/// Changes parts all the time, and often who runs and where.
pub(crate) struct Whims {
    random: Random,
    tasks: BTreeMap<TaskId, (TaskState, usize)>,
    groups: Vec<Vec<TaskId>>,
}

impl Whims {
    pub(crate) fn new(groups: usize) -> Self {
        Self {
            random: Random::seeded(),
            tasks: BTreeMap::new(),
            groups: vec![Vec::new(); groups],
        }
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.random.below(count) == 0
    }

    fn runs(&self, task: TaskId) -> bool {
        self.groups.iter().flatten().any(|&other| other == task)
    }

    /// Takes a task out, if it runs.
    fn take(&mut self, task: TaskId) {
        for group in &mut self.groups {
            group.retain(|&other| other != task);
        }
    }
}

impl Scheduler for Whims {
    fn submit(&mut self, task: Task) -> Result<(), SchedulerError> {
        self.tasks
            .insert(task.id, (TaskState::Queued, task.max_parts));
        Ok(())
    }

    fn decide(&mut self) -> Decision {
        let mut decision = Decision::default();
        let tasks = self.tasks.iter();
        let open = tasks.filter(|(_, (state, _))| !state.is_final());
        let open: Vec<TaskId> = open.map(|(&task, _)| task).collect();
        for &task in &open {
            let (ran, group) = (self.runs(task), self.random.below(self.groups.len()));
            let others = self.groups.iter().flatten().count() > usize::from(ran);
            let reason = "a whim".to_owned();
            if ran && others && self.one_in(6) {
                self.take(task);
                let by = None;
                decision.parked.push(Parking { task, by, reason });
            } else if !ran && (!others || self.one_in(2)) {
                self.groups[group].push(task);
                decision.admitted.push(Admission { task, reason });
            } else if ran && self.one_in(8) {
                self.take(task);
                self.groups[group].push(task);
            }
        }
        if self.one_in(8) {
            self.groups.reverse();
        }
        for group in self.groups.clone() {
            let members = group.into_iter().map(|task| {
                let most = self.tasks[&task].1;
                let parts = 1 + self.random.below(most + 1);
                Member { task, parts }
            });
            decision.groups.push(members.collect());
        }
        decision.max_steps = Some(1 + self.random.below(7));
        decision
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome) -> Result<(), SchedulerError> {
        self.take(task);
        if let Some((state, _)) = self.tasks.get_mut(&task) {
            *state = outcome.into();
        }
        Ok(())
    }

    fn state(&self, task: TaskId) -> Option<TaskState> {
        self.tasks.get(&task).map(|(state, _)| *state)
    }
}
