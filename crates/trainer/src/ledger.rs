use std::{collections::VecDeque, time::Instant};

use burn::tensor::Device;
use loraloom_config::RunConfig;
use loraloom_pipeline::MemoryGauge;
use loraloom_scheduler::{MeasuredIteration, TaskId};

use crate::{
    Event, TaskSource, pending::SubmittedIteration, place::Place, run_directory::RunDirectory,
    task::TrainingTask,
};

/// What is known of a run in progress: the tasks that train, what they were given and what came of
/// it, written down as it comes.
pub(crate) struct Ledger<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) directory: RunDirectory,
    /// The devices of this process that stages are on.
    pub(crate) devices: Vec<Device>,
    /// Memory of the stages' devices, each once.
    pub(crate) memory: Vec<MemoryGauge>,
    pub(crate) source: &'a mut dyn TaskSource,
    /// The running tasks; those of a group are in the order of their slots.
    pub(crate) running: Vec<TrainingTask>,
    /// Iterations submitted.
    pub(crate) iteration: u64,
    /// Iterations under way, the first of them first.
    pub(crate) pending: VecDeque<SubmittedIteration>,
    /// Tasks that cannot go on, and why.
    pub(crate) failures: Vec<(TaskId, String)>,
    /// When the results of the last booked iteration were there.
    pub(crate) arrived: Option<Instant>,
    pub(crate) tokens: u64,
    /// Iterations that the scheduler has not heard of.
    pub(crate) measured: Vec<MeasuredIteration>,
    /// Bytes that the scheduler expects the running tasks to take at the most.
    pub(crate) bytes_predicted: Option<u64>,
    /// Events that are not in the list because it could not be written.
    pub(crate) unwritten: usize,
}

impl Ledger<'_> {
    /// Writes an event and shows it. A run does not end because its events cannot be written; how
    /// many are missing is written when that is possible again.
    pub(crate) fn emit(&mut self, event: Event) {
        self.source.event(&event);
        if matches!(self.directory.replace_list(), Ok(true)) {
            let message = "events.jsonl was removed or replaced: events before this one are lost";
            let lost = Event::Warning {
                message: message.to_owned(),
            };
            self.source.event(&lost);
            if self.directory.append(&lost).is_err() {
                self.unwritten += 1;
            }
        }
        if self.unwritten > 0 {
            let count = self.unwritten;
            let message = format!("{count} events could not be written before this one");
            if self.directory.append(&Event::Warning { message }).is_ok() {
                self.unwritten = 0;
            }
        }
        if let Err(error) = self.directory.append(&event) {
            if self.unwritten == 0 {
                let message = format!("events cannot be written: {error}");
                self.source.event(&Event::Warning { message });
            }
            self.unwritten += 1;
        }
    }

    /// Bytes that the devices have reserved, if they report them.
    pub(crate) fn bytes_reserved(&self) -> Option<u64> {
        self.memory.iter().map(MemoryGauge::reserved_bytes).sum()
    }

    /// Tasks of a group, in the order of their slots.
    pub(crate) fn members(&self, group: usize) -> impl Iterator<Item = &TrainingTask> {
        self.running.iter().filter(move |task| task.group == group)
    }

    /// Tasks of a group, by slot.
    pub(crate) fn ids(&self, group: usize) -> Vec<TaskId> {
        self.members(group).map(|task| task.id).collect()
    }

    /// Index of a running task.
    pub(crate) fn index_of(&self, task: TaskId) -> Option<usize> {
        self.running.iter().position(|found| found.id == task)
    }

    /// Index of the running task in a slot.
    pub(crate) fn index_at(&self, group: usize, slot: usize) -> Option<usize> {
        let running = self.running.iter().enumerate();
        let mut members = running.filter(|(_, task)| task.group == group);
        members.nth(slot).map(|(index, _)| index)
    }

    /// Where the adapter of the running task `index` is.
    pub(crate) fn place(&self, index: usize) -> Place {
        let group = self.running[index].group;
        let before = self.running[..index].iter();
        Place {
            group,
            slot: before.filter(|task| task.group == group).count(),
        }
    }

    /// Groups in use; those with tasks come first.
    pub(crate) fn groups(&self) -> usize {
        let groups = self.running.iter().map(|task| task.group + 1);
        groups.max().unwrap_or(0)
    }

    /// Names of the adapters of each group.
    pub(crate) fn group_names(&self) -> Vec<Vec<String>> {
        let names = |group| {
            let members = self.members(group);
            members.map(|task| task.config.name.clone()).collect()
        };
        (0..self.groups()).map(names).collect()
    }
}
