use super::{Scheduler, line::Turn, reasons, wait::Wait, walk::Walked};
use crate::{Admission, Decision, Room, TaskId, TaskState};

impl<R: Room> Scheduler<R> {
    /// Makes what was found along the line true, and says what has changed.
    pub(super) fn apply(&mut self, line: &[Turn], walked: Walked, now: f64) -> Decision {
        let mut decision = Decision::default();
        let mut last_admitted = None;
        for turn in line {
            let place = walked.places.get(&turn.task).copied();
            let wait = walked.waits.get(&turn.task);
            let ran = self.runs(turn.task);
            if let Some((group, by_right)) = place {
                if !ran {
                    last_admitted = Some(turn.task);
                    decision.admitted.push(Admission {
                        task: turn.task,
                        reason: reasons::admission(self, turn, by_right, walked.head),
                    });
                }
                self.give_place(turn, group, by_right, now);
            } else {
                let wait = wait.cloned().unwrap_or_default();
                if ran {
                    let parking = reasons::parking(self, turn, &wait, last_admitted);
                    decision.parked.push(parking);
                }
                self.take_place(turn.task, wait, now);
            }
        }
        self.head = walked.head.map(|head| (head, walked.start));
        self.reservation = walked.reservation;
        self.form_groups(&mut decision);
        self.next_raise = self.first_raise(now);
        decision
    }

    fn runs(&self, task: TaskId) -> bool {
        self.state(task) == Some(TaskState::Running)
    }

    fn give_place(&mut self, turn: &Turn, group: usize, by_right: bool, now: f64) {
        let Some(entry) = self.entries.get_mut(&turn.task) else {
            return;
        };
        if !entry.is_running() {
            entry.stop_waiting(now);
            if entry.tracked.enter(TaskState::Running).is_err() {
                return;
            }
            self.admissions += 1;
            entry.admission = self.admissions;
            entry.has_trained = true;
            entry.out_of_memory_beside.clear();
            entry.taken_back_for = None;
            entry.group = None;
        }
        entry.by_right = by_right;
        if by_right && !turn.by_right {
            self.rights_given += 1;
            entry.seniority = self.rights_given;
        }
        entry.group = entry.group.or(Some(group));
    }

    fn take_place(&mut self, task: TaskId, wait: Wait, now: f64) {
        let Some(entry) = self.entries.get_mut(&task) else {
            return;
        };
        if entry.is_running() && entry.tracked.enter(TaskState::Parked).is_ok() {
            entry.start_waiting(now);
            if let Wait::Delays(head, _) = wait {
                entry.taken_back_for = Some(head);
            }
        }
        entry.wait = wait;
    }

    /// Groups those that run, and says whether one that ran has changed its group.
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
            group.sort_by_key(|member| {
                let entry = self.entries.get(&member.task);
                entry.map(|entry| entry.admission)
            });
            if !group.is_empty() {
                self.groups.push(group);
            }
        }
        if moved {
            let no_longer = || "a task did not fit any more where it was".into();
            decision.regrouped = Some(reason.unwrap_or_else(no_longer));
        }
        decision.groups.clone_from(&self.groups);
    }

    fn first_raise(&self, now: f64) -> f64 {
        let Some(aging) = self.options.aging_seconds else {
            return f64::INFINITY;
        };
        let waiting = self.live.iter().filter_map(|task| self.entries.get(task));
        waiting
            .filter(|entry| entry.state().is_waiting())
            .map(|entry| entry.next_raise(now, aging))
            .fold(f64::INFINITY, f64::min)
    }
}
