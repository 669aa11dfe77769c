use std::collections::{BTreeMap, BTreeSet};

use super::{
    History, Ledger, Policy, SchedulerOptions,
    entry::{Entry, Wait},
    fair::TenantCounters,
    order::Candidate,
    placement::{Placed, Placement, Reservation},
};
use crate::{Decision, Forecasts, Load, Member, Room, SchedulerError, TaskId, TaskState};

/// Decides at every iteration boundary which tasks train.
///
/// Tasks of a higher class (their `priority`, raised by waiting) come first, strictly; within a class
/// the [`Policy`] orders them. A task that loses its place is parked: it keeps its steps and goes on
/// later. The [`Room`] says which tasks fit, and into which group.
///
/// A decision empties the room and places all tasks in order: in each class first the *protected*
/// running tasks, then the others in the policy's order. The first task that does not fit is the
/// *head*. A task that is placed before the head is protected from then on. Protected tasks keep the
/// order in which they became so, whenever they arrived: a task is not parked because one behind it has
/// a place now. Behind the head, running tasks and, unless the policy is strict, waiting tasks
/// are placed without protection: the next decision tries the head before them. So the head is
/// placed as soon as it fits without the tasks behind it, however wrong a prediction was. A task that no
/// longer fits even alone is skipped and never becomes the head.
///
/// **Backfilling** ([`Policy::BestEffortFifo`]). The head's blockers are those tasks before it that
/// end first, by steps left and seconds a step, as many as have to end for it to fit. Its predicted
/// start is the latest of their ends, at the pace they have beside all placed tasks: a task placed
/// beside them slows them. The start that is predicted when a task becomes the head, with no task behind
/// it, is its reservation; it is predicted again only if another task comes before the head. A task
/// behind the head is placed if the predicted start with it is later neither than the
/// reservation nor than the start predicted now with no task behind the head. While a step time is unknown,
/// every task that fits is placed: parking it later is cheap. Hence, if step times are predicted
/// exactly, a head starts no later than its reservation. A task that was withdrawn because it delayed
/// a head is not tried again behind the same head.
///
/// Times are seconds on any clock of the caller that never goes back. A decision without news repeats
/// the last one. Steps are news while there is a reservation, because a task with fewer steps left
/// delays the head less. A decision tries all running tasks, and waiting tasks up to the head and
/// `backfill_depth` behind it.
#[derive(Debug, Clone)]
pub struct Scheduler<R> {
    pub(super) room: R,
    pub(super) options: SchedulerOptions,
    pub(super) entries: BTreeMap<TaskId, Entry>,
    /// The tasks that run or wait.
    pub(super) live: BTreeSet<TaskId>,
    /// Names of all tenants that have submitted a task.
    pub(super) tenants: Vec<String>,
    pub(super) tenant_numbers: BTreeMap<String, usize>,
    /// By priority.
    pub(super) tenant_counters: BTreeMap<i64, TenantCounters>,
    pub(super) reservation: Option<Reservation>,
    /// The head, and its predicted start if step times are known.
    pub(super) head: Option<(TaskId, Option<f64>)>,
    pub(super) groups: Vec<Vec<Member>>,
    /// True if anything has happened since the last decision.
    pub(super) changed: bool,
    /// The next time at which waiting raises a task.
    pub(super) next_raise: f64,
    pub(super) admissions: u64,
    pub(super) protections: u64,
    pub(super) now: f64,
}

impl<R: Room> Scheduler<R> {
    /// A scheduler without tasks.
    ///
    /// # Errors
    /// [`SchedulerError::NoPlaces`] if the cap is 0, [`SchedulerError::OutOfRange`] if seconds or
    /// shares are not positive.
    pub fn new(room: R, options: SchedulerOptions) -> Result<Self, SchedulerError> {
        options.check()?;
        Ok(Self {
            room,
            options,
            entries: BTreeMap::new(),
            live: BTreeSet::new(),
            tenants: Vec::new(),
            tenant_numbers: BTreeMap::new(),
            tenant_counters: BTreeMap::new(),
            reservation: None,
            head: None,
            groups: Vec::new(),
            changed: false,
            next_raise: f64::INFINITY,
            admissions: 0,
            protections: 0,
            now: f64::NEG_INFINITY,
        })
    }

    /// Decides the next iteration. A second call without news in between changes nothing.
    pub fn decide(&mut self, now: f64) -> Decision {
        let now = self.clock(now);
        let mut decision = if !self.changed && now < self.next_raise && !self.share_exceeded() {
            Decision {
                groups: self.groups.clone(),
                ..Decision::default()
            }
        } else {
            self.note_backlogs();
            let (candidates, placed) = self.place_all(now);
            let decision = self.apply(&candidates, placed, now);
            self.note_backlogs();
            self.changed = false;
            decision
        };
        decision.expected_bytes = self.room.run();
        let admitted = !decision.admitted.is_empty();
        decision.max_steps = self.room.learns_after(admitted, self.waiting() > 0);
        decision
    }

    /// Upper bound on what all running tasks together ask of memory.
    pub(super) fn load(&self) -> Load {
        self.live
            .iter()
            .filter_map(|task| self.entries.get(task))
            .filter(|entry| entry.is_running())
            .map(|entry| entry.task.load)
            .sum()
    }

    /// Places all candidates. A task that turns out to have lost its protection is ordered by its arrival,
    /// and all are placed again: tasks before it there must not wait for the next decision.
    fn place_all(&mut self, now: f64) -> (Vec<Candidate>, Placed) {
        let mut unprotected = BTreeSet::new();
        loop {
            let candidates = self.candidates(&unprotected, now);
            let (room, entries, options) = (&mut self.room, &self.entries, &self.options);
            let placement = Placement::new(room, entries, options, self.reservation.as_ref(), now);
            let placed = placement.run(&candidates);
            let lost = candidates.iter().filter(|candidate| {
                let place = placed.places.get(&candidate.task);
                candidate.protected && place.is_none_or(|&(_, protected)| !protected)
            });
            let known = unprotected.len();
            unprotected.extend(lost.map(|candidate| candidate.task));
            if unprotected.len() == known {
                return (candidates, placed);
            }
        }
    }

    /// The room.
    pub fn room(&self) -> &R {
        &self.room
    }

    /// The reason why a task waits since the last decision, or its state, as text; `None` if it was never submitted.
    pub fn why(&self, task: TaskId) -> Option<String> {
        let entry = self.entries.get(&task)?;
        Some(match entry.state {
            TaskState::Queued | TaskState::Parked => self.waits_for(&entry.wait),
            TaskState::Running if entry.protected => "trains".into(),
            TaskState::Running => "trains until the first waiting task fits".into(),
            TaskState::Paused => "paused by its owner".into(),
            TaskState::Done => "finished, or stopped early".into(),
            TaskState::Failed => "failed".into(),
            TaskState::Cancelled => "cancelled by its owner".into(),
        })
    }

    /// The first waiting task that does not fit, and its predicted start in the caller's seconds, which is
    /// `None` while step times are unknown.
    pub fn head(&self) -> Option<(TaskId, Option<f64>)> {
        self.head
    }

    /// The room, to change it; counts as news.
    pub fn room_mut(&mut self) -> &mut R {
        self.changed = true;
        &mut self.room
    }

    /// The errors of past predictions of memory.
    pub fn forecasts(&self) -> Forecasts {
        self.room.forecasts()
    }

    /// Tasks that wait for a place.
    pub fn waiting(&self) -> usize {
        let waits = |task: &&TaskId| self.state(**task).is_some_and(TaskState::is_waiting);
        self.live.iter().filter(waits).count()
    }

    /// State of a task; `None` if it was never submitted.
    pub fn state(&self, task: TaskId) -> Option<TaskState> {
        self.entries.get(&task).map(|entry| entry.state)
    }

    /// Optimizer steps that a task has taken; `None` if it was never submitted.
    pub fn steps_taken(&self, task: TaskId) -> Option<usize> {
        self.entries.get(&task).map(|entry| entry.steps_taken)
    }

    /// Seconds a task has waited for a place until `now`; `None` if it was never submitted.
    pub fn waited(&self, task: TaskId, now: f64) -> Option<f64> {
        self.entries.get(&task).map(|entry| entry.waited(now))
    }

    /// Service of the tenants, by priority; empty unless the policy is fair.
    pub fn ledgers(&self) -> impl Iterator<Item = (i64, &Ledger)> {
        self.tenant_counters
            .iter()
            .map(|(&priority, counters)| (priority, &counters.ledger))
    }

    /// The state that a restart after `now` needs.
    pub fn history(&self, now: f64) -> History {
        let ledgers = self.ledgers();
        let is_live = |(_, entry): &(&TaskId, &Entry)| !entry.state.is_final();
        let live = self.entries.iter().filter(is_live);
        History {
            learnt: self.room.learnt(),
            ledgers: ledgers.map(|(priority, l)| (priority, l.clone())).collect(),
            waited: live.map(|(&id, entry)| (id, entry.waited(now))).collect(),
        }
    }

    /// Restores the ledger of a priority.
    pub fn set_ledger(&mut self, priority: i64, ledger: Ledger) {
        self.tenant_counters.entry(priority).or_default().ledger = ledger;
        self.changed = true;
    }

    /// The caller's time, which never goes back.
    pub(super) fn clock(&mut self, now: f64) -> f64 {
        self.now = self.now.max(now);
        self.now
    }

    /// True if the tenant of a running task is too far ahead of one that waits.
    fn share_exceeded(&self) -> bool {
        let Policy::Fair { lead, .. } = self.options.policy else {
            return false;
        };
        let is_ahead = |member: &Member| {
            let task = &self.entries.get(&member.task)?.task;
            let counters = self.tenant_counters.get(&task.priority)?;
            let (_, least) = counters.least_backlogged()?;
            Some(counters.counter(&task.tenant) > least + lead as f64)
        };
        let mut running = self.groups.iter().flatten();
        running.any(|member| is_ahead(member).unwrap_or(false))
    }

    /// Tells the counters which tenants wait. A task that can never fit does not count.
    fn note_backlogs(&mut self) {
        let Policy::Fair { lift, .. } = self.options.policy else {
            return;
        };
        let mut backlogs: BTreeMap<i64, BTreeSet<usize>> = BTreeMap::new();
        for task in &self.live {
            if let Some(entry) = self.entries.get(task)
                && entry.state.is_waiting()
                && !matches!(entry.wait, Wait::NeverFits(_))
            {
                let of_priority = backlogs.entry(entry.task.priority).or_default();
                of_priority.insert(entry.tenant);
            }
        }
        for &priority in backlogs.keys() {
            self.tenant_counters.entry(priority).or_default();
        }
        for (priority, counters) in &mut self.tenant_counters {
            let numbers = backlogs.remove(priority).unwrap_or_default();
            let names = numbers
                .into_iter()
                .filter_map(|tenant| self.tenants.get(tenant));
            counters.set_backlogged(names.cloned().collect(), lift);
        }
    }
}
