use std::collections::{BTreeMap, BTreeSet};

use loraloom_scheduler::TaskId;

use super::{State, Task};
use crate::{AdapterReport, Outcome};

/// Location of a running task's adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotLocation {
    pub(crate) group: usize,
    /// Slot within the group.
    pub(crate) slot: usize,
}

/// All tasks of a run, and the groups of running ones.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    /// Tasks that have not ended.
    live: BTreeMap<TaskId, Task>,
    /// Running tasks of each group, by slot; groups with tasks come first.
    groups: Vec<Vec<TaskId>>,
    pub(crate) ended: BTreeMap<TaskId, AdapterReport>,
    /// Ended tasks that can continue in a later part of the run, from the last checkpoint that has them.
    pub(crate) held: BTreeSet<TaskId>,
    /// Tasks of a queue that failed or whose files are missing: checkpoints keep their saved state.
    pub(crate) carried: BTreeMap<TaskId, String>,
}

impl Tasks {
    pub(crate) fn insert(&mut self, task: Task) {
        self.live.insert(task.id, task);
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<&Task> {
        self.live.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        self.live.get_mut(&id)
    }

    /// All tasks that have not ended, by their ids.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Task> {
        self.live.values()
    }

    /// As [`live`](Self::live).
    pub(crate) fn live_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.live.values_mut()
    }

    /// Ids of the running tasks, group by group in the order of their slots.
    pub(crate) fn running_ids(&self) -> Vec<TaskId> {
        self.groups.concat()
    }

    /// The running tasks, group by group in the order of their slots.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Task> {
        let ids = self.groups.iter().flatten();
        ids.filter_map(|id| self.live.get(id))
    }

    /// The running tasks, by their ids.
    pub(crate) fn running_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.live.values_mut().filter(|task| task.is_running())
    }

    /// Tasks without a place, by their ids.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Task> {
        self.live.values().filter(|task| !task.is_running())
    }

    /// Bytes of host memory that adapters of tasks without a place take.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting().map(Task::waiting_bytes).sum()
    }

    /// The place of a task, if it runs.
    pub(crate) fn place(&self, id: TaskId) -> Option<SlotLocation> {
        self.groups.iter().enumerate().find_map(|(group, members)| {
            let slot = members.iter().position(|member| *member == id)?;
            Some(SlotLocation { group, slot })
        })
    }

    pub(crate) fn groups(&self) -> &[Vec<TaskId>] {
        &self.groups
    }

    /// Ids of the running tasks of a group, by slot.
    pub(crate) fn ids(&self, group: usize) -> &[TaskId] {
        self.groups.get(group).map_or(&[], Vec::as_slice)
    }

    /// Running tasks of a group, by slot.
    pub(crate) fn members(&self, group: usize) -> impl Iterator<Item = &Task> {
        self.ids(group).iter().filter_map(|id| self.live.get(id))
    }

    /// Names of the adapters of each group.
    pub(crate) fn group_names(&self) -> Vec<Vec<String>> {
        let name = |id: &TaskId| self.name_of(*id);
        let names = |group: &Vec<TaskId>| group.iter().filter_map(name).collect();
        self.groups.iter().map(names).collect()
    }

    pub(crate) fn name_of(&self, id: TaskId) -> Option<String> {
        Some(self.live.get(&id)?.config.name.clone())
    }

    /// Appends a task to a group.
    pub(crate) fn join(&mut self, id: TaskId, group: usize) {
        if let Some(task) = self.live.get_mut(&id) {
            task.state = State::Running;
            self.reach(group);
            self.groups[group].push(id);
        }
    }

    /// Removes a task from its group; the caller has its adapter. Its state stays `Running`: it joins another group,
    /// or the caller sets its state.
    pub(crate) fn leave(&mut self, id: TaskId) {
        if let Some(place) = self.place(id) {
            self.groups[place.group].remove(place.slot);
            self.trim();
        }
    }

    pub(crate) fn swap_groups(&mut self, first: usize, second: usize) {
        self.reach(first.max(second));
        self.groups.swap(first, second);
        self.trim();
    }

    /// Drops all running tasks.
    pub(crate) fn drop_running(&mut self) {
        self.groups.clear();
        self.live.retain(|_, task| !task.is_running());
    }

    /// Takes out all running tasks, in the order of [`running`](Self::running).
    pub(crate) fn take_running(&mut self) -> Vec<Task> {
        let ids = std::mem::take(&mut self.groups).concat();
        ids.iter().filter_map(|id| self.live.remove(id)).collect()
    }

    /// Takes out all tasks without a place.
    pub(crate) fn take_waiting(&mut self) -> Vec<Task> {
        let waiting = self.live.extract_if(.., |_, task| !task.is_running());
        waiting.map(|(_, task)| task).collect()
    }

    fn reach(&mut self, group: usize) {
        let count = self.groups.len().max(group + 1);
        self.groups.resize_with(count, Vec::new);
    }

    fn trim(&mut self) {
        while self.groups.last().is_some_and(Vec::is_empty) {
            self.groups.pop();
        }
    }

    /// Takes out a task without a place.
    pub(crate) fn remove(&mut self, id: TaskId) -> Option<Task> {
        self.live.remove(&id)
    }

    /// True if an earlier part of the run was interrupted.
    pub(crate) fn any_interrupted(&self) -> bool {
        let interrupted = |report: &AdapterReport| report.outcome == Outcome::Interrupted;
        self.ended.values().any(interrupted) || self.waiting().next().is_some()
    }
}
