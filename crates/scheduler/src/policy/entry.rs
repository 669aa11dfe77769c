use super::wait::Wait;
use crate::{Task, TaskId, TaskState, state::Tracked};

/// What is known of a task from an earlier run of the program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Past {
    /// Its state then. One that ran has no place any more and is taken as parked.
    pub state: TaskState,
    /// Optimizer steps it has taken.
    pub steps_taken: usize,
    /// Seconds it had waited for a place.
    pub waited: f64,
}

/// A task and all that the scheduler keeps of it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) tracked: Tracked,
    /// The number of its tenant in the scheduler's list, which is quicker to compare than names.
    pub(super) tenant: usize,
    pub(super) steps_taken: usize,
    /// Whether it has had a place before, so that a pause ends in `parked`.
    pub(super) has_trained: bool,
    /// Seconds it had waited when it last stopped to wait.
    pub(super) waited: f64,
    /// When it began to wait; of meaning only while it waits.
    pub(super) waits_since: f64,
    /// The group it trains in, or trained in last.
    pub(super) group: Option<usize>,
    /// Orders running tasks by the time they got their places.
    pub(super) admission: u64,
    /// Whether nobody of its class or above waited before it when it was placed last. Only then
    /// does it go before waiting tasks of its class.
    pub(super) by_right: bool,
    /// Orders those that have their places by right: who got it first comes first.
    pub(super) seniority: u64,
    /// The tasks beside which it ran out of memory; it is not placed while all of them are.
    pub(super) out_of_memory_beside: Vec<TaskId>,
    /// The task whose start it would have delayed. While that one is first to wait, it is not tried
    /// again: predictions that waver must not send it back and forth.
    pub(super) taken_back_for: Option<TaskId>,
    /// Why it waits.
    pub(super) wait: Wait,
}

impl Entry {
    pub(super) fn queued(task: Task, now: f64) -> Self {
        Self::of(Tracked::queued(task), now)
    }

    pub(super) fn restored(task: Task, past: Past, now: f64) -> Self {
        let state = match past.state {
            TaskState::Running => TaskState::Parked,
            other => other,
        };
        Self {
            steps_taken: past.steps_taken,
            has_trained: past.steps_taken > 0 || state == TaskState::Parked,
            waited: past.waited.max(0.0),
            ..Self::of(Tracked::restored(task, state), now)
        }
    }

    fn of(tracked: Tracked, now: f64) -> Self {
        Self {
            tracked,
            tenant: 0,
            steps_taken: 0,
            has_trained: false,
            waited: 0.0,
            waits_since: now,
            group: None,
            admission: 0,
            by_right: false,
            seniority: 0,
            out_of_memory_beside: Vec::new(),
            taken_back_for: None,
            wait: Wait::Undecided,
        }
    }

    pub(super) fn task(&self) -> &Task {
        &self.tracked.task
    }

    pub(super) fn state(&self) -> TaskState {
        self.tracked.state()
    }

    pub(super) fn is_running(&self) -> bool {
        self.state() == TaskState::Running
    }

    /// Whether it asks for a place, or has one.
    pub(super) fn is_live(&self) -> bool {
        self.is_running() || self.state().is_waiting()
    }

    pub(super) fn steps_left(&self) -> usize {
        self.task().total_steps.saturating_sub(self.steps_taken)
    }

    /// Seconds it has waited for a place, all told.
    pub(super) fn waited(&self, now: f64) -> f64 {
        if self.state().is_waiting() {
            self.waited + (now - self.waits_since).max(0.0)
        } else {
            self.waited
        }
    }

    /// Its class after `aging` seconds a class.
    pub(super) fn raised_by(&self, now: f64, aging: f64) -> i64 {
        (self.waited(now) / aging).floor() as i64
    }

    /// When waiting on raises it the next time.
    pub(super) fn next_raise(&self, now: f64, aging: f64) -> f64 {
        let next = (self.raised_by(now, aging) + 1) as f64 * aging;
        self.waits_since + next - self.waited
    }

    /// Ends its waiting, if it waits.
    pub(super) fn stop_waiting(&mut self, now: f64) {
        self.waited = self.waited(now);
    }

    pub(super) fn start_waiting(&mut self, now: f64) {
        self.waits_since = now;
        self.by_right = false;
        self.wait = Wait::Undecided;
    }
}
