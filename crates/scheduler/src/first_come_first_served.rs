use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    Admission, Decision, Member, Outcome, Scheduler, SchedulerError, Task, TaskId, TaskState,
    state::Tracked,
};

/// Higher priority first, first come first served within a priority, nobody sent away once running.
///
/// All running tasks form one group, in the order of their admission.
#[derive(Debug, Clone)]
pub struct FirstComeFirstServed {
    max_adapters: Option<usize>,
    tasks: BTreeMap<TaskId, Tracked>,
    queue: BTreeSet<Turn>,
    running: Vec<TaskId>,
}

/// A task's turn in the queue; the smallest is next. The identity only makes it unique.
type Turn = (Reverse<i64>, u64, TaskId);

fn turn_of(task: &Task) -> Turn {
    (Reverse(task.priority), task.arrival, task.id)
}

impl FirstComeFirstServed {
    /// A scheduler that runs at most `max_adapters` tasks at a time; `None` runs all that come.
    ///
    /// # Errors
    /// [`SchedulerError::NoPlaces`] if the cap is 0.
    pub fn new(max_adapters: Option<usize>) -> Result<Self, SchedulerError> {
        if max_adapters == Some(0) {
            return Err(SchedulerError::NoPlaces);
        }
        Ok(Self {
            max_adapters,
            tasks: BTreeMap::new(),
            queue: BTreeSet::new(),
            running: Vec::new(),
        })
    }

    fn has_room(&self) -> bool {
        self.max_adapters.is_none_or(|cap| self.running.len() < cap)
    }

    /// Why the task that has just been given a place was the one to get it.
    fn reason(&self, (Reverse(priority), arrival, _): Turn) -> String {
        let turn = format!("next in line with priority {priority}, arrival {arrival}");
        match self.max_adapters {
            Some(cap) => format!("{turn}; takes place {} of {cap}", self.running.len()),
            None => format!("{turn}; no cap on adapters"),
        }
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
        while self.has_room() {
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
            self.running.push(id);
            admitted.push(Admission {
                task: id,
                reason: self.reason(turn),
            });
        }
        let groups = if self.running.is_empty() {
            Vec::new()
        } else {
            let whole = |&task| Member { task, parts: 1 };
            vec![self.running.iter().map(whole).collect()]
        };
        Decision {
            admitted,
            groups,
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
        self.running.retain(|&running| running != task);
        Ok(())
    }

    fn state(&self, task: TaskId) -> Option<TaskState> {
        self.tasks.get(&task).map(Tracked::state)
    }
}
