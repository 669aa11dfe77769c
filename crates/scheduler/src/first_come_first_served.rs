use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    Admission, Decision, Member, Outcome, Scheduler, SchedulerError, Task, TaskId, TaskState,
    balanced_groups, group_count, state::Tracked,
};

/// Higher priority first, first come first served within a priority, nobody sent away once running.
///
/// Running tasks form as many groups as there are stages, while there are tasks for them. Tasks that
/// begin together in an empty pipeline are spread so that groups have about as many tokens in a step;
/// others go to the group with the fewest. A task changes its group only where a group would be empty.
#[derive(Debug, Clone)]
pub struct FirstComeFirstServed {
    max_adapters: Option<usize>,
    stages: usize,
    tasks: BTreeMap<TaskId, Tracked>,
    queue: BTreeSet<Turn>,
    /// The running tasks, none of the groups empty.
    groups: Vec<Vec<TaskId>>,
}

/// A task's turn in the queue; the smallest is next. The identity only makes it unique.
type Turn = (Reverse<i64>, u64, TaskId);

fn turn_of(task: &Task) -> Turn {
    (Reverse(task.priority), task.arrival, task.id)
}

impl FirstComeFirstServed {
    /// A scheduler that runs at most `max_adapters` tasks at a time, in groups for a pipeline of
    /// `stages` stages (0 counts as 1); without a cap it runs all that come.
    ///
    /// # Errors
    /// [`SchedulerError::NoPlaces`] if the cap is 0.
    pub fn new(max_adapters: Option<usize>, stages: usize) -> Result<Self, SchedulerError> {
        if max_adapters == Some(0) {
            return Err(SchedulerError::NoPlaces);
        }
        Ok(Self {
            max_adapters,
            stages: stages.max(1),
            tasks: BTreeMap::new(),
            queue: BTreeSet::new(),
            groups: Vec::new(),
        })
    }

    fn running(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }

    /// Why a task is the one to get this place.
    fn reason(&self, (Reverse(priority), ..): Turn, place: usize) -> String {
        let turn = format!("next in line at priority {priority}");
        match self.max_adapters {
            Some(cap) => format!("{turn}; takes place {place} of {cap}"),
            None => format!("{turn}; no cap on adapters"),
        }
    }

    fn tokens(&self, task: TaskId) -> usize {
        let tracked = self.tasks.get(&task);
        tracked.map_or(0, |tracked| tracked.task.tokens_per_step)
    }

    /// Tokens that a step of each group may have.
    fn loads(&self) -> Vec<usize> {
        let load = |group: &Vec<TaskId>| group.iter().map(|&task| self.tokens(task)).sum();
        self.groups.iter().map(load).collect()
    }

    /// Puts tasks that begin together into groups.
    fn join(&mut self, admitted: &[TaskId]) {
        let wanted = group_count(self.stages, self.running() + admitted.len());
        if self.running() == 0 {
            let tokens: Vec<usize> = admitted.iter().map(|&task| self.tokens(task)).collect();
            let members =
                |group: Vec<usize>| group.into_iter().map(|task| admitted[task]).collect();
            let groups = balanced_groups(&tokens, wanted).into_iter();
            self.groups = groups.map(members).collect();
            return;
        }
        self.groups
            .resize_with(wanted.max(self.groups.len()), Vec::new);
        let mut loads = self.loads();
        for &task in admitted {
            let emptiest = (0..loads.len()).min_by_key(|&group| loads[group]);
            if let Some(group) = emptiest {
                self.groups[group].push(task);
                loads[group] += self.tokens(task);
            }
        }
    }

    /// Fills groups whose tasks have all ended: with the last task of the group with the most tokens
    /// that has several, or else with the last group. Whether a task has moved.
    fn fill(&mut self) -> bool {
        let wanted = group_count(self.stages, self.running());
        let mut moved = false;
        while let Some(empty) =
            (0..wanted.min(self.groups.len())).find(|&group| self.groups[group].is_empty())
        {
            let loads = self.loads();
            let several = |&group: &usize| self.groups[group].len() > 1;
            let donor = (0..self.groups.len())
                .filter(several)
                .max_by_key(|&group| loads[group]);
            if let Some(task) = donor.and_then(|donor| self.groups[donor].pop()) {
                self.groups[empty].push(task);
            } else {
                self.groups.swap_remove(empty);
            }
            moved = true;
        }
        // Those beyond the wanted ones are empty: each of the others has a task.
        self.groups.retain(|group| !group.is_empty());
        moved
    }
}

impl Scheduler for FirstComeFirstServed {
    fn submit(&mut self, task: Task) -> Result<(), SchedulerError> {
        if let Some(existing) = self.tasks.get(&task.id) {
            return Err(SchedulerError::DuplicateTask {
                id: task.id,
                name: task.name,
                existing: existing.task.name.clone(),
            });
        }
        self.queue.insert(turn_of(&task));
        self.tasks.insert(task.id, Tracked::queued(task));
        Ok(())
    }

    fn decide(&mut self) -> Decision {
        let mut admitted = Vec::new();
        let running = self.running();
        while self
            .max_adapters
            .is_none_or(|cap| running + admitted.len() < cap)
        {
            let Some(turn) = self.queue.pop_first() else {
                break;
            };
            let id = turn.2;
            let tracked = self
                .tasks
                .get_mut(&id)
                .expect("a task in the queue was submitted");
            tracked
                .enter(TaskState::Running)
                .expect("a task in the queue is queued");
            admitted.push(Admission {
                task: id,
                reason: self.reason(turn, running + admitted.len() + 1),
            });
        }
        let began: Vec<TaskId> = admitted.iter().map(|admission| admission.task).collect();
        self.join(&began);
        let regrouped = self.fill().then(|| "a group had no task left".to_owned());
        let members = |group: &Vec<TaskId>| {
            let whole = |&task| Member { task, parts: 1 };
            group.iter().map(whole).collect()
        };
        Decision {
            admitted,
            groups: self.groups.iter().map(members).collect(),
            regrouped,
            ..Decision::default()
        }
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome) -> Result<(), SchedulerError> {
        let tracked = self
            .tasks
            .get_mut(&task)
            .ok_or(SchedulerError::UnknownTask(task))?;
        tracked.enter(outcome.into())?;
        self.queue.remove(&turn_of(&tracked.task));
        for group in &mut self.groups {
            group.retain(|&running| running != task);
        }
        Ok(())
    }

    fn state(&self, task: TaskId) -> Option<TaskState> {
        self.tasks.get(&task).map(Tracked::state)
    }
}
