use std::collections::{BTreeMap, BTreeSet};

use loraloom_scheduler::{
    Decision, OutOfMemory, Past, Policy, Scheduler, SchedulerOptions, Task, TaskId, TaskOutcome,
    TaskState,
};

use crate::policy::room::{Pace, StubRoom, task};

/// A scheduler, a clock, and all tasks ever submitted.
pub(crate) struct World {
    pub(crate) scheduler: Scheduler<StubRoom>,
    pub(crate) tasks: BTreeMap<TaskId, Task>,
    pub(crate) running: BTreeSet<TaskId>,
    pub(crate) now: f64,
    /// Where tasks were after the last decision.
    pub(crate) states: BTreeMap<TaskId, TaskState>,
}

pub(crate) fn options(policy: Policy) -> SchedulerOptions {
    SchedulerOptions {
        policy,
        ..SchedulerOptions::default()
    }
}

pub(crate) fn fair(lead: u64) -> Policy {
    Policy::Fair { lead, lift: true }
}

impl World {
    pub(crate) fn new(room: StubRoom, options: SchedulerOptions) -> Self {
        Self {
            scheduler: Scheduler::new(room, options).unwrap(),
            tasks: BTreeMap::new(),
            running: BTreeSet::new(),
            now: 0.0,
            states: BTreeMap::new(),
        }
    }

    pub(crate) fn submit(&mut self, task: Task) {
        self.scheduler.submit(task.clone(), self.now).unwrap();
        self.tasks.insert(task.id, task);
    }

    /// Submits a task of the next number.
    pub(crate) fn arrive(
        &mut self,
        priority: i64,
        tenant: &str,
        units: usize,
        steps: usize,
    ) -> TaskId {
        let id = self.tasks.len() as u64;
        self.submit(task(id, priority, tenant, units, steps));
        TaskId(id)
    }

    /// When a task is predicted to start, if it is the first that does not fit.
    pub(crate) fn predicted_start(&self, task: TaskId) -> Option<f64> {
        let (head, start) = self.scheduler.head()?;
        start.filter(|_| head == task)
    }

    pub(crate) fn state(&self, task: TaskId) -> TaskState {
        self.scheduler.state(task).unwrap()
    }

    /// Decides, and checks all that holds of any decision.
    pub(crate) fn decide(&mut self) -> Decision {
        let before: BTreeMap<TaskId, TaskState> = self
            .tasks
            .keys()
            .map(|&task| (task, self.state(task)))
            .collect();
        let decision = self.scheduler.decide(self.now);
        let again = self.scheduler.decide(self.now);
        let repeated = Decision {
            groups: decision.groups.clone(),
            ..Decision::default()
        };
        assert_eq!(again, repeated, "asked again");

        let mut running = BTreeSet::new();
        for group in &decision.groups {
            let units: usize = group
                .iter()
                .map(|member| self.tasks[&member.task].rank)
                .sum();
            assert!(units <= self.scheduler.room().capacity && !group.is_empty());
            for member in group {
                assert!(running.insert(member.task), "{} runs twice", member.task);
            }
        }
        let parked: BTreeSet<TaskId> = decision.parked.iter().map(|it| it.task).collect();
        let admitted: BTreeSet<TaskId> = decision.admitted.iter().map(|it| it.task).collect();
        assert_eq!(parked.len(), decision.parked.len());
        assert_eq!(admitted.len(), decision.admitted.len());
        for (&task, &before) in &before {
            let expected = match before {
                TaskState::Running if parked.contains(&task) => TaskState::Parked,
                TaskState::Queued | TaskState::Parked if admitted.contains(&task) => {
                    TaskState::Running
                }
                other => {
                    assert!(
                        !parked.contains(&task) && !admitted.contains(&task),
                        "{task}"
                    );
                    other
                }
            };
            assert_eq!(self.state(task), expected, "{task} was {before}");
            assert_eq!(running.contains(&task), expected == TaskState::Running);
            self.states.insert(task, expected);
        }
        self.running = running;
        decision
    }

    /// Every running task takes a step in the room's time, or in one second if that is unknown.
    /// Returns those that have ended by it.
    pub(crate) fn train(&mut self) -> Vec<TaskId> {
        self.now += self.scheduler.room().seconds().unwrap_or(1.0);
        let mut ended = Vec::new();
        for task in self.running.clone() {
            let tokens = self.tasks[&task].tokens_per_step as u64;
            self.scheduler.progress(task, 1, tokens).unwrap();
            if self.scheduler.steps_taken(task) >= Some(self.tasks[&task].total_steps) {
                self.scheduler
                    .finish(task, TaskOutcome::Done, self.now)
                    .unwrap();
                self.running.remove(&task);
                ended.push(task);
            }
        }
        ended
    }

    pub(crate) fn out_of_memory(&mut self) -> OutOfMemory {
        let result = self.scheduler.out_of_memory(self.now);
        if let OutOfMemory::Parked(parking) = &result {
            self.running.remove(&parking.task);
        }
        result
    }

    /// A new process that knows what was written down of this one.
    pub(crate) fn restarted(&self, options: SchedulerOptions) -> Self {
        let mut room = self.scheduler.room().clone();
        loraloom_scheduler::Room::clear(&mut room);
        let mut scheduler = Scheduler::new(room, options).unwrap();
        for (&id, task) in &self.tasks {
            let past = Past {
                state: self.state(id),
                steps_taken: self.scheduler.steps_taken(id).unwrap(),
                waited: self.scheduler.waited(id, self.now).unwrap(),
            };
            scheduler.restore(task.clone(), past, 0.0).unwrap();
        }
        for (priority, ledger) in self.scheduler.history(self.now).ledgers {
            scheduler.set_ledger(priority, ledger);
        }
        Self {
            scheduler,
            tasks: self.tasks.clone(),
            running: BTreeSet::new(),
            now: 0.0,
            states: BTreeMap::new(),
        }
    }
}

/// So many groups, each with so many units.
pub(crate) fn untimed(groups: usize, capacity: usize) -> StubRoom {
    StubRoom::new(groups, capacity, Pace::Unknown)
}
