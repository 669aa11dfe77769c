//! Tasks in the stages: admitted, parked and grouped by the scheduler's decisions.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use burn::tensor::Device;
use loraloom_config::InitLoraWeights;
use loraloom_pipeline::Pipeline;
use loraloom_scheduler::{Admission, Decision, Parking, TaskId, TaskState};

use super::{
    Rewind, SlotLocation, Snapshot, StartCost, State, Task, Tasks,
    slora::common_start,
    start_values::{Computed, computed},
};
use crate::{
    TrainerError,
    adapter::{ModelAdapter, fresh, kept_on_host, on_host},
    error::Result,
};

/// The tasks of a run, and the stages that hold the adapters of running ones.
pub(crate) struct Placement {
    pub(crate) pipeline: Pipeline,
    pub(crate) tasks: Tasks,
    /// Device on which adapters are created; each stage takes its part from there.
    device: Device,
    /// Micro-batches of a batch.
    split: usize,
}

impl Placement {
    pub(crate) fn new(pipeline: Pipeline, device: Device, split: usize) -> Self {
        Self {
            pipeline,
            tasks: Tasks::default(),
            device,
            split,
        }
    }

    /// A running task and its place.
    ///
    /// # Errors
    /// [`TrainerError::Decision`] if it does not run.
    pub(crate) fn running(&self, id: TaskId) -> Result<(&Task, SlotLocation)> {
        let running = self.tasks.get(id).zip(self.tasks.place(id));
        running.ok_or_else(|| TrainerError::Decision {
            problem: format!("{id} does not run"),
        })
    }

    /// A copy of a running task's adapter in host memory, which the optimizer does not change.
    pub(crate) fn copy(&self, id: TaskId) -> Result<ModelAdapter> {
        let (_, place) = self.running(id)?;
        Ok(on_host(self.pipeline.extract(place.group, place.slot)?)?)
    }

    /// Removes a task that ends, whether it runs or waits. `None` if there is no such task.
    pub(crate) fn remove(&mut self, id: TaskId) -> Result<Option<Task>> {
        if let Some(place) = self.tasks.place(id) {
            self.pipeline.remove(place.group, place.slot)?;
            self.tasks.leave(id);
        }
        Ok(self.tasks.remove(id))
    }

    /// Takes a running task out of the stages, with its adapter and moments. `None` if it does not run.
    pub(crate) fn park(&mut self, id: TaskId) -> Result<Option<&Task>> {
        let Some(place) = self.tasks.place(id) else {
            return Ok(None);
        };
        let adapter = self.pipeline.remove(place.group, place.slot)?;
        self.tasks.leave(id);
        let Some(task) = self.tasks.get_mut(id) else {
            return Ok(None);
        };
        task.wait_with(|| Ok(on_host(adapter)?))?;
        Ok(Some(task))
    }

    /// Makes the adapter that a waiting task begins with, unless it exists. Returns the cost if that was computed.
    pub(crate) fn begin(&mut self, id: TaskId) -> Result<Option<StartCost>> {
        let Some(task) = self.tasks.get(id) else {
            return Ok(None);
        };
        if matches!(task.state, State::Parked(_)) || task.initial.is_some() {
            return Ok(None);
        }
        if task.config.lora.init_lora_weights == InitLoraWeights::Slora {
            return self.begin_together(id).map(Some);
        }
        let (initial, shape, cost) = if task.config.lora.init_lora_weights.is_computed() {
            let Computed {
                adapter,
                shape,
                cost,
            } = computed(task, &self.pipeline, &self.device, self.split)?;
            (adapter, shape, Some(cost))
        } else {
            let fresh = fresh(&task.config, self.pipeline.config(), &self.device)?;
            (fresh, None, None)
        };
        if let Some(task) = self.tasks.get_mut(id) {
            task.initial = Some(initial);
            task.shape = shape;
        }
        Ok(cost)
    }

    /// Makes the adapters of all tasks that have one start with a waiting one, which then wait with theirs: the others may
    /// begin long after this one has ended.
    fn begin_together(&mut self, id: TaskId) -> Result<StartCost> {
        let begun = Instant::now();
        let Some(task) = self.tasks.get(id) else {
            return Ok(StartCost::default());
        };
        let pipeline = &mut self.pipeline;
        let (starts, mut cost) =
            common_start(&self.tasks, task, pipeline, &self.device, self.split)?;
        for (client, adapter) in starts {
            if let Some(task) = self.tasks.get_mut(client) {
                if client != id {
                    task.state = State::Parked(kept_on_host(adapter.clone())?);
                }
                task.initial = Some(adapter);
            }
        }
        cost.seconds = begun.elapsed().as_secs_f64();
        Ok(cost)
    }

    /// The adapter that a waiting task begins or continues with.
    pub(crate) fn adapter(&mut self, id: TaskId) -> Result<Option<ModelAdapter>> {
        self.begin(id)?;
        Ok(self.tasks.get(id).and_then(|task| match &task.state {
            State::Parked(adapter) => Some(adapter.clone()),
            State::Waiting | State::Running => task.initial.clone(),
        }))
    }

    /// The groups of a decision, without empty ones.
    ///
    /// # Errors
    /// [`TrainerError::Decision`] for a decision that contradicts itself or the running tasks.
    pub(crate) fn groups_of(&self, decision: &Decision) -> Result<Vec<Vec<TaskId>>> {
        let refuse = |problem: String| Err(TrainerError::Decision { problem });
        let mut running: BTreeSet<TaskId> = self.tasks.running_ids().into_iter().collect();
        for Parking { task, .. } in &decision.parked {
            if !running.remove(task) {
                return refuse(format!("cannot park {task}: it does not run"));
            }
        }
        for Admission { task, .. } in &decision.admitted {
            let waits = self.tasks.get(*task).is_some_and(|task| !task.is_running());
            if !waits || !running.insert(*task) {
                return refuse(format!("cannot start {task}: it does not wait"));
            }
        }
        let mut groups = Vec::with_capacity(decision.groups.len());
        for members in &decision.groups {
            let mut group = Vec::with_capacity(members.len());
            for member in members {
                let (task, parts) = (member.task, member.parts);
                if parts == 0 {
                    return refuse(format!("{task} must train in at least 1 part, not 0"));
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

    /// Forms the wanted groups, slot by slot, from the running tasks and those of `coming`, with their adapters. A
    /// task that keeps its group and its order there is not moved.
    pub(crate) fn form(
        &mut self,
        wanted: &[Vec<TaskId>],
        mut coming: BTreeMap<TaskId, ModelAdapter>,
    ) -> Result<()> {
        let groups = wanted.len().max(self.tasks.groups().len());
        self.pipeline.reserve_groups(groups)?;
        self.renumber(wanted, groups)?;
        for group in 0..groups {
            let target = wanted.get(group).map_or(&[][..], Vec::as_slice);
            let members = self.tasks.ids(group).to_vec();
            let stays = staying(&members, target);
            // From the last one on, so that a removal does not move those still to be removed.
            for (slot, &id) in members.iter().enumerate().rev() {
                if !stays[slot] {
                    coming.insert(id, self.pipeline.remove(group, slot)?);
                    self.tasks.leave(id);
                }
            }
        }
        for (group, target) in wanted.iter().enumerate() {
            for &id in target {
                if let Some(adapter) = coming.remove(&id) {
                    self.pipeline.push(group, adapter)?;
                    self.tasks.join(id, group);
                }
            }
        }
        Ok(())
    }

    /// Swaps whole groups if that leaves fewer tasks to move.
    fn renumber(&mut self, wanted: &[Vec<TaskId>], groups: usize) -> Result<()> {
        for (group, target) in wanted.iter().enumerate() {
            let count = |from: usize| {
                let stays = staying(self.tasks.ids(from), target);
                stays.into_iter().filter(|&stays| stays).count()
            };
            let best = (group..groups).rev().max_by_key(|&from| count(from));
            let Some(from) = best.filter(|&from| count(from) > count(group)) else {
                continue;
            };
            self.pipeline.swap_groups(group, from)?;
            self.tasks.swap_groups(group, from);
        }
        Ok(())
    }

    /// Restarts steps whose gradients the stages have dropped, because an adapter joined or left the group.
    pub(crate) fn restart_lost_steps(&mut self) {
        for id in self.tasks.running_ids() {
            let place = self.tasks.place(id);
            let revision = place.map(|place| self.pipeline.revision(place.group));
            if let Some((task, revision)) = self.tasks.get_mut(id).zip(revision)
                && std::mem::replace(&mut task.revision, revision) != revision
            {
                task.restart_step();
            }
        }
    }

    /// A copy of the running tasks as they are after `iteration`.
    pub(crate) fn snapshot(&self, iteration: u64, tokens: u64) -> Result<Snapshot> {
        let copy = |task: &Task| {
            let mut copy = task.clone();
            copy.state = State::Parked(match &task.initial {
                Some(initial) if task.steps == 0 => kept_on_host(initial.clone())?,
                _ => self.copy(task.id)?,
            });
            Ok(copy)
        };
        let tasks = self.tasks.running().map(copy);
        let tasks = tasks.collect::<Result<_>>()?;
        let groups = self.tasks.groups().to_vec();
        Ok(Snapshot::new(iteration, tokens, groups, tasks))
    }

    /// Restores tasks and adapters: from the last snapshot, and those admitted since as they were then. The scheduler
    /// decides where each goes.
    pub(crate) fn restore(
        &mut self,
        Rewind {
            snapshot, arrivals, ..
        }: &Rewind,
        state: impl Fn(TaskId) -> Option<TaskState>,
    ) -> Result<()> {
        for (group, members) in self.tasks.groups().iter().enumerate() {
            for slot in (0..members.len()).rev() {
                self.pipeline.remove(group, slot)?;
            }
        }
        self.tasks.drop_running();
        let kept = snapshot.iter().flat_map(Snapshot::tasks);
        let kept_ids: BTreeSet<TaskId> = kept.clone().map(|(_, task)| task.id).collect();
        let arrived = arrivals
            .values()
            .filter(|task| !kept_ids.contains(&task.id));
        let back: Vec<(usize, &Task)> = kept.chain(arrived.map(|task| (0, task))).collect();
        // All are restored before the first goes back to the stages, which may fail.
        for (_, task) in &back {
            let runs = state(task.id) == Some(TaskState::Running);
            let waits = state(task.id).is_some_and(|state| !state.is_final());
            if runs || waits && self.tasks.get(task.id).is_none() {
                let mut task = (*task).clone();
                if let (false, State::Parked(adapter)) = (runs, task.state.clone()) {
                    task.wait_with(|| Ok(adapter))?;
                }
                self.tasks.insert(task);
            }
        }
        for (group, task) in back {
            if state(task.id) == Some(TaskState::Running)
                && let Some(adapter) = self.adapter(task.id)?
            {
                self.pipeline.reserve_groups(group + 1)?;
                self.pipeline.push(group, adapter)?;
                self.tasks.join(task.id, group);
            }
        }
        Ok(())
    }
}

/// The tasks of `current` that can stay in the target group: those that, without the others, are a prefix of it.
/// Later tasks get slots behind them.
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
