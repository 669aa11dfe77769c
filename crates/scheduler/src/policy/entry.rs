use super::Past;
use crate::{SchedulerError, Task, TaskId, TaskState};

/// A task and its state in the scheduler.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) task: Task,
    pub(super) state: TaskState,
    /// Index of its tenant in the scheduler's list, which compares faster than the name.
    pub(super) tenant: usize,
    pub(super) steps_taken: usize,
    /// True if it has trained, so that it is parked and not queued after a pause.
    pub(super) has_trained: bool,
    /// Seconds it has waited, without the current wait.
    pub(super) waited: f64,
    /// Begin of the current wait, if it waits.
    pub(super) waits_since: f64,
    /// The group that it trains in, or trained in last.
    pub(super) group: Option<usize>,
    /// Number of its admission: orders running tasks by the time of it.
    pub(super) admission: u64,
    /// True if it was placed before the head, last time. Only then does it come before waiting tasks of
    /// its class.
    pub(super) protected: bool,
    /// Orders protected tasks by the time since when they are.
    pub(super) seniority: u64,
    /// The tasks beside which it ran out of memory; it is not placed while all of them are.
    pub(super) out_of_memory_beside: Vec<TaskId>,
    /// The head whose start it would have delayed. It is not tried again behind the same head, so that
    /// varying predictions do not admit and park it repeatedly.
    pub(super) withdrawn_for: Option<TaskId>,
    /// The reason why it waits.
    pub(super) wait: Wait,
}

impl Entry {
    pub(super) fn queued(task: Task, now: f64) -> Self {
        Self {
            task,
            state: TaskState::Queued,
            tenant: 0,
            steps_taken: 0,
            has_trained: false,
            waited: 0.0,
            waits_since: now,
            group: None,
            admission: 0,
            protected: false,
            seniority: 0,
            out_of_memory_beside: Vec::new(),
            withdrawn_for: None,
            wait: Wait::Undecided,
        }
    }

    pub(super) fn restored(task: Task, past: Past, now: f64) -> Self {
        let state = match past.state {
            TaskState::Running => TaskState::Parked,
            other => other,
        };
        Self {
            state,
            steps_taken: past.steps_taken,
            has_trained: past.steps_taken > 0 || state == TaskState::Parked,
            waited: past.waited.max(0.0),
            ..Self::queued(task, now)
        }
    }

    pub(super) fn enter(&mut self, next: TaskState) -> Result<(), SchedulerError> {
        self.state.enter(next, &self.task)
    }

    pub(super) fn is_running(&self) -> bool {
        self.state == TaskState::Running
    }

    /// True if it asks for a place, or has one.
    pub(super) fn is_live(&self) -> bool {
        self.is_running() || self.state.is_waiting()
    }

    pub(super) fn steps_left(&self) -> usize {
        self.task.total_steps.saturating_sub(self.steps_taken)
    }

    /// Seconds it has waited for a place, in all.
    pub(super) fn waited(&self, now: f64) -> f64 {
        if self.state.is_waiting() {
            self.waited + (now - self.waits_since).max(0.0)
        } else {
            self.waited
        }
    }

    /// Classes by which it is raised, one for each `aging` seconds of waiting.
    pub(super) fn raised_by(&self, now: f64, aging: f64) -> i64 {
        (self.waited(now) / aging).floor() as i64
    }

    /// The time at which it is raised next, if it goes on waiting.
    pub(super) fn next_raise(&self, now: f64, aging: f64) -> f64 {
        let next = (self.raised_by(now, aging) + 1) as f64 * aging;
        self.waits_since + next - self.waited
    }

    pub(super) fn stop_waiting(&mut self, now: f64) {
        self.waited = self.waited(now);
    }

    pub(super) fn start_waiting(&mut self, now: f64) {
        self.waits_since = now;
        self.protected = false;
        self.wait = Wait::Undecided;
    }
}

/// The reason why a task has no place.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Wait {
    /// No decision was made since it began to wait.
    #[default]
    Undecided,
    /// It does not fit beside the tasks before it: the missing resource, as text.
    Missing(String),
    /// It does not fit even alone any more.
    NeverFits(String),
    /// `max_adapters` tasks run.
    Cap(usize),
    /// It ran out of memory beside these, and all of them run.
    OutOfMemory(Vec<TaskId>),
    /// The policy lets no task pass this head.
    Behind(TaskId),
    /// This head would start later, by these seconds.
    Delays(TaskId, f64),
    /// `backfill_depth` tasks were tried behind this head.
    TooDeep(TaskId),
    /// Its tenant is ahead of the tenant of this index, by these tokens.
    OverShare(usize, f64),
}
