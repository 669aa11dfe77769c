//! What a scheduler decided, done: tasks leave the stages, groups are formed, tasks begin.

use std::collections::{BTreeMap, BTreeSet};

use loraloom_scheduler::{Admission, Decision, Parking, TaskId};

use crate::{
    Event, TrainerError,
    adapter::{ModelAdapter, fresh, on_host},
    session::Session,
    task::TrainingTask,
    waiting::WaitingTask,
};

/// Tasks on their way between places, with their adapters.
type OnTheWay = BTreeMap<TaskId, (TrainingTask, ModelAdapter)>;

impl Session<'_> {
    /// Parks, lets in and groups tasks as decided. No iteration may be under way.
    ///
    /// # Errors
    /// [`TrainerError::Decision`] for a decision that contradicts itself or what runs, of which
    /// nothing is done.
    pub(crate) fn carry_out(&mut self, decision: Decision) -> Result<(), TrainerError> {
        let groups = self.groups_of(&decision)?;
        self.ledger.bytes_predicted = decision.expected_bytes;
        for parking in decision.parked {
            self.park(parking)?;
        }
        let mut coming = OnTheWay::new();
        for admission in &decision.admitted {
            if let Some(waiting) = self.waiting.remove(&admission.task) {
                self.arrivals.insert(admission.task, waiting.clone());
                let adapter = match waiting.adapter {
                    Some(adapter) => adapter,
                    None => self.first_state(&waiting.task)?,
                };
                coming.insert(admission.task, (waiting.task, adapter));
            }
        }
        self.form(&groups, coming)?;
        for member in decision.groups.iter().flatten() {
            if let Some(index) = self.ledger.index_of(member.task) {
                self.ledger.running[index].parts = member.parts;
            }
        }
        let admitted: Vec<TaskId> = decision
            .admitted
            .iter()
            .map(|admission| admission.task)
            .collect();
        self.ask_before(&admitted)?;
        for admission in decision.admitted {
            self.begin(admission);
        }
        if let Some(reason) = decision.regrouped {
            let groups = self.ledger.group_names();
            self.ledger.emit(Event::Regroup { groups, reason });
        }
        Ok(())
    }

    /// What a task begins with.
    pub(crate) fn first_state(
        &mut self,
        task: &TrainingTask,
    ) -> Result<ModelAdapter, TrainerError> {
        if let Some(initial) = self.initial.get(&task.id) {
            return Ok(initial.clone());
        }
        let state = fresh(&task.config, self.pipeline.config(), &self.device)?;
        self.initial.insert(task.id, state.clone());
        Ok(state)
    }

    /// The groups that a decision names, without empty ones, if it can be carried out.
    fn groups_of(&self, decision: &Decision) -> Result<Vec<Vec<TaskId>>, TrainerError> {
        let refuse = |problem: String| Err(TrainerError::Decision { problem });
        let mut running: BTreeSet<TaskId> =
            self.ledger.running.iter().map(|task| task.id).collect();
        for Parking { task, .. } in &decision.parked {
            if !running.remove(task) {
                return refuse(format!("{task} is to be parked and does not run"));
            }
        }
        for Admission { task, .. } in &decision.admitted {
            if !self.waiting.contains_key(task) || !running.insert(*task) {
                return refuse(format!("{task} is to begin and does not wait"));
            }
        }
        let mut groups = Vec::with_capacity(decision.groups.len());
        for members in &decision.groups {
            let mut group = Vec::with_capacity(members.len());
            for member in members {
                let (task, parts) = (member.task, member.parts);
                if parts == 0 {
                    return refuse(format!("{task} is to train in 0 parts, not in 1 or more"));
                }
                if !running.remove(&task) {
                    return refuse(format!("{task} is in a group twice, or does not run"));
                }
                group.push(task);
            }
            if !group.is_empty() {
                groups.push(group);
            }
        }
        match running.first() {
            Some(task) => refuse(format!("{task} runs and is in no group")),
            None => Ok(groups),
        }
    }

    /// Takes a task out of the stages, with everything that it is.
    pub(crate) fn park(&mut self, parking: Parking) -> Result<(), TrainerError> {
        let Some(index) = self.ledger.index_of(parking.task) else {
            return Ok(());
        };
        let place = self.ledger.place(index);
        let adapter = on_host(self.pipeline.remove(place.group, place.slot)?)?;
        let task = self.ledger.running.remove(index);
        let by = parking.by.and_then(|by| self.name_of(by));
        let (name, step) = (task.config.name.clone(), task.steps);
        let waiting = WaitingTask {
            task,
            adapter: Some(adapter),
        };
        self.waiting.insert(parking.task, waiting);
        self.ledger.emit(Event::Park {
            adapter: name,
            step,
            reason: parking.reason,
            by,
        });
        Ok(())
    }

    pub(crate) fn name_of(&self, task: TaskId) -> Option<String> {
        let waiting = self.waiting.get(&task).map(|waiting| &waiting.task);
        let running = || self.ledger.running.iter().find(|found| found.id == task);
        let found = waiting.or_else(running)?;
        Some(found.config.name.clone())
    }

    /// Makes the groups those that are wanted, slot by slot, of the running tasks and those on their
    /// way. A task whose group and place in it are the same stays where it is.
    fn form(&mut self, wanted: &[Vec<TaskId>], mut coming: OnTheWay) -> Result<(), TrainerError> {
        let groups = wanted.len().max(self.ledger.groups());
        self.pipeline.reserve_groups(groups)?;
        self.renumber(wanted, groups)?;
        for group in 0..groups {
            let target = wanted.get(group).map_or(&[][..], Vec::as_slice);
            let stays = staying(&self.ledger.ids(group), target);
            // From the last one on, so that removing one does not move those still to come.
            for slot in (0..stays.len()).rev().filter(|&slot| !stays[slot]) {
                let adapter = self.pipeline.remove(group, slot)?;
                if let Some(index) = self.ledger.index_at(group, slot) {
                    let task = self.ledger.running.remove(index);
                    coming.insert(task.id, (task, adapter));
                }
            }
        }
        for (group, target) in wanted.iter().enumerate() {
            for id in target {
                if let Some((mut task, adapter)) = coming.remove(id) {
                    self.pipeline.push(group, adapter)?;
                    task.group = group;
                    self.ledger.running.push(task);
                }
            }
        }
        // Stable: tasks of a group stay in the order of their slots.
        self.ledger.running.sort_by_key(|task| task.group);
        Ok(())
    }

    /// Exchanges whole groups where that leaves fewer tasks to be moved.
    fn renumber(&mut self, wanted: &[Vec<TaskId>], groups: usize) -> Result<(), TrainerError> {
        let mut current: Vec<Vec<TaskId>> =
            (0..groups).map(|group| self.ledger.ids(group)).collect();
        for (group, target) in wanted.iter().enumerate() {
            let count = |from: usize| {
                let stays = staying(&current[from], target);
                stays.into_iter().filter(|&stays| stays).count()
            };
            let best = (group..groups).rev().max_by_key(|&from| count(from));
            let Some(from) = best.filter(|&from| count(from) > count(group)) else {
                continue;
            };
            self.pipeline.swap_groups(group, from)?;
            current.swap(group, from);
            for task in &mut self.ledger.running {
                if task.group == group {
                    task.group = from;
                } else if task.group == from {
                    task.group = group;
                }
            }
        }
        Ok(())
    }

    /// Says that a task trains from now on.
    fn begin(&mut self, admission: Admission) {
        let Some(index) = self.ledger.index_of(admission.task) else {
            return;
        };
        let task = &self.ledger.running[index];
        let (adapter, step, total_steps) = (task.config.name.clone(), task.steps, task.total_steps);
        self.ledger.emit(Event::Admit {
            adapter,
            step,
            total_steps,
            reason: admission.reason,
        });
    }
}

/// Which of the current tasks can stay when the target is to be the group: those that are, without
/// the others, its beginning. Whoever comes later gets a slot behind them.
fn staying(current: &[TaskId], target: &[TaskId]) -> Vec<bool> {
    let mut next = target.iter().peekable();
    let stays = current.iter().map(|task| next.next_if_eq(&task).is_some());
    stays.collect()
}

#[cfg(test)]
mod tests {
    use loraloom_scheduler::TaskId;

    use super::staying;

    #[test]
    fn who_is_at_the_beginning_stays() {
        let stays = |current: &[u64], target: &[u64]| {
            let ids = |ids: &[u64]| ids.iter().copied().map(TaskId).collect::<Vec<_>>();
            staying(&ids(current), &ids(target))
        };
        assert_eq!(stays(&[1, 2, 3], &[1, 2, 3, 4]), [true, true, true]);
        assert_eq!(stays(&[1, 2, 3], &[2, 3, 1]), [false, true, true]);
        assert_eq!(stays(&[1, 2, 3], &[1, 3]), [true, false, true]);
        assert_eq!(stays(&[1, 2], &[3, 1, 2]), [false, false]);
        assert_eq!(stays(&[1, 2], &[]), [false, false]);
        assert!(stays(&[], &[1]).is_empty());
    }
}
