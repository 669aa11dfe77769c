use std::collections::{BTreeMap, BTreeSet};

use super::{
    Policy, SchedulerOptions,
    entry::{Entry, Wait},
    fair::UnplacedTenants,
    order::Candidate,
};
use crate::{Room, TaskId};

/// Relative difference of two predictions that is rounding: their sums run in different orders.
const ROUNDING: f64 = 1e-9;

/// One pass over the candidates, in order, that fills the room.
#[derive(Debug)]
pub(super) struct Placement<'a, R> {
    room: &'a mut R,
    entries: &'a BTreeMap<TaskId, Entry>,
    options: &'a SchedulerOptions,
    now: f64,
    unplaced: UnplacedTenants,
    kept: Option<&'a Reservation>,
    /// The tasks that have places, in the order they got them.
    placed: Vec<TaskId>,
    groups: Vec<usize>,
    /// Waiting tasks that were tried behind the head.
    tried_behind: usize,
    done: Placed,
    forecast: Option<Forecast>,
}

/// The result of a placement.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// The group of each placed task, and whether the task is protected.
    pub(super) places: BTreeMap<TaskId, (usize, bool)>,
    pub(super) waits: BTreeMap<TaskId, Wait>,
    /// The first task that does not fit.
    pub(super) head: Option<TaskId>,
    pub(super) reservation: Option<Reservation>,
    /// When the head starts; `None` while step times are unknown.
    pub(super) start: Option<f64>,
}

impl<'a, R: Room> Placement<'a, R> {
    pub(super) fn new(
        room: &'a mut R,
        entries: &'a BTreeMap<TaskId, Entry>,
        options: &'a SchedulerOptions,
        kept: Option<&'a Reservation>,
        now: f64,
    ) -> Self {
        room.clear();
        Self {
            room,
            entries,
            options,
            now,
            unplaced: UnplacedTenants::default(),
            kept,
            placed: Vec::new(),
            groups: Vec::new(),
            tried_behind: 0,
            done: Placed::default(),
            forecast: None,
        }
    }

    pub(super) fn run(mut self, candidates: &[Candidate]) -> Placed {
        if let Policy::Fair { lead, .. } = self.options.policy {
            self.unplaced = UnplacedTenants::new(candidates, lead as f64);
        }
        for candidate in candidates {
            if let Some(entry) = self.entries.get(&candidate.task) {
                let refused = self.try_candidate(candidate, entry);
                if let Err(wait) = refused {
                    self.done.waits.insert(candidate.task, wait);
                }
            }
        }
        self.done.start = self.forecast.map(|forecast| forecast.start);
        for (&task, &group) in self.placed.iter().zip(&self.groups) {
            if let Some((kept, _)) = self.done.places.get_mut(&task) {
                *kept = group;
            }
        }
        self.done
    }

    /// # Errors
    /// The reason for which it waits.
    fn try_candidate(&mut self, candidate: &Candidate, entry: &'a Entry) -> Result<(), Wait> {
        let fair = matches!(self.options.policy, Policy::Fair { .. });
        if fair
            && !candidate.protected
            && let Some((behind, tokens)) = self.unplaced.over_share(candidate)
        {
            return Err(Wait::OverShare(behind, tokens));
        }
        let placed = match self.done.head {
            None => self.before_head(entry),
            Some(head) => self.behind_head(head, entry),
        };
        if fair && matches!(placed, Ok(()) | Err(Wait::NeverFits(_))) {
            self.unplaced.remove(candidate);
        }
        placed
    }

    fn before_head(&mut self, entry: &'a Entry) -> Result<(), Wait> {
        let refused = match self.place(entry, true) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        if let (Wait::Missing(_), Err(never)) = (&refused, self.room.admits_alone(&entry.task)) {
            // A task that can never be placed must not hold up others.
            return Err(Wait::NeverFits(never.reason));
        }
        self.done.head = Some(entry.task.id);
        if !matches!(self.options.policy, Policy::Fair { .. }) {
            self.reserve(entry);
        }
        Err(refused)
    }

    fn behind_head(&mut self, head: TaskId, entry: &'a Entry) -> Result<(), Wait> {
        if !entry.is_running() {
            if self.options.policy == Policy::StrictFifo {
                return Err(Wait::Behind(head));
            }
            if entry.withdrawn_for == Some(head) {
                return Err(match &entry.wait {
                    Wait::Delays(of, seconds) if *of == head => Wait::Delays(head, *seconds),
                    _ => Wait::Behind(head),
                });
            }
            if self.tried_behind >= self.options.backfill_depth {
                return Err(Wait::TooDeep(head));
            }
            self.tried_behind += 1;
        }
        self.place(entry, false)?;
        if self.options.policy == Policy::BestEffortFifo
            && let Some(later) = self.delay(head)
        {
            self.take_out(entry.task.id);
            return Err(Wait::Delays(head, later));
        }
        Ok(())
    }

    fn place(&mut self, entry: &'a Entry, protected: bool) -> Result<(), Wait> {
        let group = place_beside(self.room, &self.placed, self.options.max_adapters, entry)?;
        let id = entry.task.id;
        self.placed.push(id);
        self.groups.push(group);
        self.done.places.insert(id, (group, protected));
        Ok(())
    }

    fn take_out(&mut self, task: TaskId) {
        self.room.remove(task);
        if let Some(place) = self.placed.iter().position(|&placed| placed == task) {
            self.placed.remove(place);
            self.groups.remove(place);
        }
        self.done.places.remove(&task);
    }

    /// Seconds until `task` has taken all its steps, at its pace beside the tasks placed now.
    fn seconds_left(&self, task: TaskId) -> Option<f64> {
        let steps = self.entries.get(&task)?.steps_left();
        Some(self.room.seconds_per_step(task)? * steps as f64)
    }

    /// Predicts the start of the head and keeps the prediction from when it became the head. Does
    /// nothing while a step time is unknown.
    fn reserve(&mut self, head: &'a Entry) {
        let ends: Option<Vec<(f64, TaskId)>> = self
            .placed
            .iter()
            .map(|&task| Some((self.seconds_left(task)?, task)))
            .collect();
        let Some(mut ends) = ends else { return };
        ends.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let mut beside = self.placed.clone();
        let mut found = None;
        for (ended, &(seconds, task)) in ends.iter().enumerate() {
            self.room.remove(task);
            beside.retain(|&there| there != task);
            if place_beside(self.room, &beside, self.options.max_adapters, head).is_ok() {
                found = Some((ended + 1, self.now + seconds));
                break;
            }
        }
        self.restore_places();
        let Some((ended, fresh)) = found else { return };
        let task = head.task.id;
        let reservation = match self.kept {
            Some(kept) if kept.is_valid_for(task, &self.placed) => kept.clone(),
            _ => Reservation {
                head: task,
                ahead: self.placed.iter().copied().collect(),
                start: fresh,
            },
        };
        self.forecast = Some(Forecast {
            blockers: ends[..ended].iter().map(|&(_, task)| task).collect(),
            limit: reservation.start.max(fresh),
            start: fresh,
        });
        self.done.reservation = Some(reservation);
    }

    /// Fills the room again after a prediction has removed tasks.
    fn restore_places(&mut self) {
        self.room.clear();
        let placed = std::mem::take(&mut self.placed);
        let groups = std::mem::take(&mut self.groups);
        for (task, group) in placed.into_iter().zip(groups) {
            let Some(entry) = self.entries.get(&task) else {
                continue;
            };
            match self.room.place(&entry.task, Some(group)) {
                Ok(group) => {
                    self.placed.push(task);
                    self.groups.push(group);
                }
                Err(refusal) => {
                    self.done.places.remove(&task);
                    self.done.waits.insert(task, Wait::Missing(refusal.reason));
                }
            }
        }
    }

    /// Seconds by which the tasks placed now delay the head beyond its limit; `None` if they do not, or
    /// if a step time is unknown.
    fn delay(&mut self, head: TaskId) -> Option<f64> {
        let forecast = self.forecast.as_ref()?;
        debug_assert_eq!(self.done.head, Some(head));
        let mut start = self.now;
        for &blocker in &forecast.blockers {
            start = start.max(self.now + self.seconds_left(blocker)?);
        }
        let late = start - forecast.limit;
        if late > ROUNDING * (forecast.limit - self.now).abs().max(1.0) {
            return Some(late);
        }
        if let Some(forecast) = &mut self.forecast {
            forecast.start = start;
        }
        None
    }
}

/// The start of the head, as predicted when it became the head.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reservation {
    pub(super) head: TaskId,
    /// The tasks placed before it then. The reservation is valid as long as no other task is placed before
    /// the head.
    pub(super) ahead: BTreeSet<TaskId>,
    /// On the caller's clock, in seconds.
    pub(super) start: f64,
}

impl Reservation {
    /// True if it is that of `head`, and no task is placed before the head that it does not count.
    fn is_valid_for(&self, head: TaskId, ahead: &[TaskId]) -> bool {
        self.head == head && ahead.iter().all(|task| self.ahead.contains(task))
    }
}

/// The prediction for the head within one decision.
#[derive(Debug)]
struct Forecast {
    /// The tasks that have to end before it fits: of those placed before it, the first to end.
    blockers: Vec<TaskId>,
    /// The latest start that a task behind it may cause.
    limit: f64,
    /// Its start with the tasks that are placed now.
    start: f64,
}

/// Places a task, unless the cap is reached or it ran out of memory beside the tasks placed now.
fn place_beside<R: Room>(
    room: &mut R,
    placed: &[TaskId],
    max_adapters: Option<usize>,
    entry: &Entry,
) -> Result<usize, Wait> {
    if let Some(cap) = max_adapters
        && placed.len() >= cap
    {
        return Err(Wait::Cap(cap));
    }
    let beside = &entry.out_of_memory_beside;
    if !beside.is_empty() && beside.iter().all(|task| placed.contains(task)) {
        return Err(Wait::OutOfMemory(beside.clone()));
    }
    room.place(&entry.task, entry.group)
        .map_err(|refusal| Wait::Missing(refusal.reason))
}
