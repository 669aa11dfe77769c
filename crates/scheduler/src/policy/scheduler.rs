use std::collections::{BTreeMap, BTreeSet};

use super::{
    History, Ledger, Policy, SchedulerOptions,
    entry::Entry,
    ledger::Account,
    line::{Turn, line},
    reservation::Reservation,
    wait::Wait,
    walk::{Walk, Walked},
};
use crate::{Decision, Forecasts, Load, Member, Room, SchedulerError, TaskId, TaskState};

/// Decides at every iteration boundary which tasks train.
///
/// Classes of higher `priority` come first, strictly; within a class the [`Policy`] says whose turn
/// it is. A task that has to give its place away is parked: it keeps its steps and goes on later.
/// What fits, and in which group, the [`Room`] says.
///
/// At a decision the room is emptied and filled anew along the line: first, in each class, the tasks
/// that run there *by right*, then the others in the policy's order. Those that run by right stay in
/// the order in which they got it, whenever they arrived, so that nobody gives way because somebody
/// behind it has a place now. The first that does not fit is the *head*. What is placed behind it (tasks that ran already, and, unless the policy is strict,
/// waiting ones that fit) has no right to stay: at the next decision the head is tried before it,
/// so however wrong a prediction was, the head has its place as soon as it fits without those behind
/// it. One that does not fit even alone any more is nobody's head.
///
/// **Backfilling** ([`Policy::BestEffortFifo`]). The head's blockers are the tasks before it that
/// end first, by their steps left and seconds a step, just as many as have to end for it to fit. Its
/// predicted start is the latest of the ends of these, at the pace they have beside all that have
/// places: a task put beside them slows them. What is predicted when it first does not fit, with
/// nobody behind it, is its reservation; it is made anew only if somebody else comes before it. A
/// task behind it is placed if, with it, the predicted start is neither later than the reservation
/// nor than what is predicted now with nobody behind the head. While a step time is unknown all that
/// fit are placed: to park them is nearly free. Hence, if step times are predicted exactly, a head
/// starts no later than its reservation. What was taken back because it delayed a head is not tried
/// again behind the same one.
///
/// Time is what the caller says it is: seconds on any clock, never going back. A decision without
/// news since the last repeats it without a walk; steps taken are news while there is a reservation,
/// as the fewer are left, the less does a task behind the head delay it. A walk tries each running task, and waiting ones
/// up to the head and `backfill_depth` behind it.
#[derive(Debug, Clone)]
pub struct Scheduler<R> {
    pub(super) room: R,
    pub(super) options: SchedulerOptions,
    pub(super) entries: BTreeMap<TaskId, Entry>,
    /// Those that run or wait.
    pub(super) live: BTreeSet<TaskId>,
    /// Everybody who ever submitted a task.
    pub(super) tenants: Vec<String>,
    pub(super) tenant_numbers: BTreeMap<String, usize>,
    /// By priority.
    pub(super) accounts: BTreeMap<i64, Account>,
    pub(super) reservation: Option<Reservation>,
    /// The first task that does not fit, and when it starts, as far as is known.
    pub(super) head: Option<(TaskId, Option<f64>)>,
    pub(super) groups: Vec<Vec<Member>>,
    /// Whether anything happened that the last decision does not know.
    pub(super) changed: bool,
    /// When waiting raises a task the next time.
    pub(super) next_raise: f64,
    pub(super) admissions: u64,
    pub(super) rights_given: u64,
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
            accounts: BTreeMap::new(),
            reservation: None,
            head: None,
            groups: Vec::new(),
            changed: false,
            next_raise: f64::INFINITY,
            admissions: 0,
            rights_given: 0,
            now: f64::NEG_INFINITY,
        })
    }

    /// What happens in the next iteration. Asking again without news changes nothing.
    pub fn decide(&mut self, now: f64) -> Decision {
        let now = self.clock(now);
        let mut decision = if !self.changed && now < self.next_raise && !self.somebody_leads() {
            Decision {
                groups: self.groups.clone(),
                ..Decision::default()
            }
        } else {
            self.note_backlogs();
            let (line, walked) = self.walk(now);
            let decision = self.apply(&line, walked, now);
            self.note_backlogs();
            self.changed = false;
            decision
        };
        decision.expected_bytes = self.room.run();
        let admitted = !decision.admitted.is_empty();
        decision.max_steps = self.room.learns_after(admitted, self.waiting() > 0);
        decision
    }

    /// What all running tasks ask of memory, at the most.
    pub(super) fn load(&self) -> Load {
        self.live
            .iter()
            .filter_map(|task| self.entries.get(task))
            .filter(|entry| entry.is_running())
            .map(|entry| entry.task().load)
            .sum()
    }

    /// Gives places along the line. Whoever turns out to have lost its right to go first goes where
    /// its arrival puts it, and places are given anew: who is before it there must not wait for the
    /// next decision.
    fn walk(&mut self, now: f64) -> (Vec<Turn>, Walked) {
        let mut without_right = BTreeSet::new();
        loop {
            let line = line(
                &self.entries,
                &self.live,
                &self.accounts,
                &self.options,
                &without_right,
                now,
            );
            let reservation = self.reservation.as_ref();
            let walked = Walk::new(
                &mut self.room,
                &self.entries,
                &self.options,
                reservation,
                now,
            )
            .along(&line);
            let lost = line.iter().filter(|turn| {
                let place = walked.places.get(&turn.task);
                turn.by_right && place.is_none_or(|&(_, by_right)| !by_right)
            });
            let known = without_right.len();
            without_right.extend(lost.map(|turn| turn.task));
            if without_right.len() == known {
                return (line, walked);
            }
        }
    }

    /// The room, to ask it for numbers.
    pub fn room(&self) -> &R {
        &self.room
    }

    /// Why a task waits, as of the last decision, or where else it stands; `None` if it was never
    /// submitted.
    pub fn why(&self, task: TaskId) -> Option<String> {
        let entry = self.entries.get(&task)?;
        Some(match entry.state() {
            TaskState::Queued | TaskState::Parked => self.waits_for(&entry.wait),
            TaskState::Running if entry.by_right => "trains".into(),
            TaskState::Running => {
                "trains in a place that the first to wait takes as soon as it fits".into()
            }
            TaskState::Paused => "held by its owner".into(),
            TaskState::Done => "took all its steps, or stopped early".into(),
            TaskState::Failed => "ended by an error of its own".into(),
            TaskState::Cancelled => "ended by its owner".into(),
        })
    }

    /// The first waiting task that does not fit, and when it is predicted to start, in the caller's
    /// seconds; `None` for the latter while step times are unknown.
    pub fn head(&self) -> Option<(TaskId, Option<f64>)> {
        self.head
    }

    /// The room, to change it; the next decision is made anew.
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

    /// Where a task stands; `None` if it was never submitted.
    pub fn state(&self, task: TaskId) -> Option<TaskState> {
        self.entries.get(&task).map(Entry::state)
    }

    /// Optimizer steps a task has taken; `None` if it was never submitted.
    pub fn steps_taken(&self, task: TaskId) -> Option<usize> {
        self.entries.get(&task).map(|entry| entry.steps_taken)
    }

    /// Seconds a task has waited for a place until `now`; `None` if it was never submitted.
    pub fn waited(&self, task: TaskId, now: f64) -> Option<f64> {
        self.entries.get(&task).map(|entry| entry.waited(now))
    }

    /// What the tenants of each priority have been served, to be kept for a restart. Empty unless
    /// the policy is fair.
    pub fn ledgers(&self) -> impl Iterator<Item = (i64, &Ledger)> {
        self.accounts
            .iter()
            .map(|(&priority, account)| (priority, &account.ledger))
    }

    /// What is to be remembered for a restart after `now`.
    pub fn history(&self, now: f64) -> History {
        let ledgers = self.ledgers();
        let live = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.state().is_final());
        History {
            learnt: self.room.learnt(),
            ledgers: ledgers
                .map(|(priority, ledger)| (priority, ledger.clone()))
                .collect(),
            waited: live.map(|(&id, entry)| (id, entry.waited(now))).collect(),
        }
    }

    /// Takes up the ledger of a priority from before a restart.
    pub fn set_ledger(&mut self, priority: i64, ledger: Ledger) {
        self.accounts.entry(priority).or_default().ledger = ledger;
        self.changed = true;
    }

    /// The caller's time, which never goes back.
    pub(super) fn clock(&mut self, now: f64) -> f64 {
        self.now = self.now.max(now);
        self.now
    }

    /// Whether a running task's tenant is too far ahead of one that waits.
    fn somebody_leads(&self) -> bool {
        let Policy::Fair { lead, .. } = self.options.policy else {
            return false;
        };
        let running = self.groups.iter().flatten();
        running
            .filter_map(|member| self.entries.get(&member.task))
            .any(|entry| {
                let task = entry.task();
                let account = self.accounts.get(&task.priority);
                account.is_some_and(|account| {
                    let least = account.least_backlogged();
                    least.is_some_and(|(_, least)| {
                        account.counter(&task.tenant) > least + lead as f64
                    })
                })
            })
    }

    /// Tells the accounts which tenants wait. A task that will never fit is not waited for.
    fn note_backlogs(&mut self) {
        let Policy::Fair { lift, .. } = self.options.policy else {
            return;
        };
        let mut backlogs: BTreeMap<i64, BTreeSet<usize>> = BTreeMap::new();
        for task in &self.live {
            if let Some(entry) = self.entries.get(task)
                && entry.state().is_waiting()
                && !matches!(entry.wait, Wait::NeverFits(_))
            {
                let of_priority = backlogs.entry(entry.task().priority).or_default();
                of_priority.insert(entry.tenant);
            }
        }
        for &priority in backlogs.keys() {
            self.accounts.entry(priority).or_default();
        }
        for (priority, account) in &mut self.accounts {
            let numbers = backlogs.remove(priority).unwrap_or_default();
            let names = numbers
                .into_iter()
                .filter_map(|tenant| self.tenants.get(tenant));
            account.wait_now(names.cloned().collect(), lift);
        }
    }
}
