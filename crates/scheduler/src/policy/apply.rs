use super::{Scheduler, entry::Wait, order::Candidate, placement::Placed, reasons};
use crate::{Admission, Decision, Room, TaskId, TaskState};

impl<R: Room> Scheduler<R> {
    /// Carries out a placement and returns what has changed.
    pub(super) fn apply(&mut self, candidates: &[Candidate], placed: Placed, now: f64) -> Decision {
        let mut decision = Decision::default();
        let mut last_admitted = None;
        for candidate in candidates {
            let place = placed.places.get(&candidate.task).copied();
            let wait = placed.waits.get(&candidate.task);
            let ran = self.runs(candidate.task);
            if let Some((group, protected)) = place {
                if !ran {
                    last_admitted = Some(candidate.task);
                    decision.admitted.push(Admission {
                        task: candidate.task,
                        reason: reasons::admission(self, candidate, protected, placed.head),
                    });
                }
                self.assign(candidate, group, protected, now);
            } else {
                let wait = wait.cloned().unwrap_or_default();
                if ran {
                    let parking = reasons::parking(self, candidate, &wait, last_admitted);
                    decision.parked.push(parking);
                }
                self.unassign(candidate.task, wait, now);
            }
        }
        self.head = placed.head.map(|head| (head, placed.start));
        self.reservation = placed.reservation;
        self.form_groups(&mut decision);
        self.next_raise = self.first_raise(now);
        decision
    }

    pub(super) fn runs(&self, task: TaskId) -> bool {
        self.state(task) == Some(TaskState::Running)
    }

    fn assign(&mut self, candidate: &Candidate, group: usize, protected: bool, now: f64) {
        let Some(entry) = self.entries.get_mut(&candidate.task) else {
            return;
        };
        if !entry.is_running() {
            entry.stop_waiting(now);
            if entry.enter(TaskState::Running).is_err() {
                return;
            }
            self.admissions += 1;
            entry.admission = self.admissions;
            entry.has_trained = true;
            entry.out_of_memory_beside.clear();
            entry.withdrawn_for = None;
            entry.group = None;
        }
        entry.protected = protected;
        if protected && !candidate.protected {
            self.protections += 1;
            entry.seniority = self.protections;
        }
        entry.group = entry.group.or(Some(group));
    }

    fn unassign(&mut self, task: TaskId, wait: Wait, now: f64) {
        let Some(entry) = self.entries.get_mut(&task) else {
            return;
        };
        if entry.is_running() && entry.enter(TaskState::Parked).is_ok() {
            entry.start_waiting(now);
            if let Wait::Delays(head, _) = wait {
                entry.withdrawn_for = Some(head);
            }
        }
        entry.wait = wait;
    }

    /// Forms the groups, and notes if a task that runs on has changed its group.
    fn form_groups(&mut self, decision: &mut Decision) {
        let reason = self.room.regroup();
        let mut moved = false;
        let groups = self.room.groups();
        self.groups = Vec::with_capacity(groups.len());
        for (number, mut group) in groups.into_iter().enumerate() {
            for member in &group {
                if let Some(entry) = self.entries.get_mut(&member.task) {
                    let before = entry.group.replace(number);
                    let new = decision.admitted.iter().any(|new| new.task == member.task);
                    moved |= !new && before != Some(number);
                }
            }
            group.sort_by_key(|member| self.entries.get(&member.task).map(|e| e.admission));
            if !group.is_empty() {
                self.groups.push(group);
            }
        }
        if moved {
            let no_longer = || "a task no longer fitted its place".into();
            decision.regrouped = Some(reason.unwrap_or_else(no_longer));
        }
        decision.groups.clone_from(&self.groups);
    }

    fn first_raise(&self, now: f64) -> f64 {
        let Some(aging) = self.options.aging_seconds else {
            return f64::INFINITY;
        };
        self.live
            .iter()
            .filter_map(|task| self.entries.get(task))
            .filter(|entry| entry.state.is_waiting())
            .map(|entry| entry.next_raise(now, aging))
            .fold(f64::INFINITY, f64::min)
    }
}
