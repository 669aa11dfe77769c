use super::{
    Budget, budget::Memory, layout::Layout, options::Rules, profile::Profile, rejection::Rejection,
};
use crate::{Member, Padding, Refusal, Room, SchedulerError, StepTimeModel, Task, TaskId};

/// The baseline of mLoRA: all that fits. Devices are filled one after another by memory alone, and a
/// batch is padded to its longest row.
#[derive(Debug, Clone)]
pub struct NaiveRoom<B> {
    memory: Memory<B>,
    rules: Rules,
    model: Option<StepTimeModel>,
    layout: Layout,
}

impl<B: Budget> NaiveRoom<B> {
    /// A room of these devices; `model` only predicts.
    ///
    /// # Errors
    /// [`SchedulerError::NoDevices`].
    pub fn new(devices: Vec<B>, model: Option<StepTimeModel>) -> Result<Self, SchedulerError> {
        let groups = devices.len();
        if groups == 0 {
            return Err(SchedulerError::NoDevices);
        }
        let memory = Memory::PerGroup(devices);
        Ok(Self {
            layout: Layout::new(&memory, groups),
            memory,
            rules: Rules::memory_only(Padding::ToLongest, model),
            model,
        })
    }
}

impl<B: Budget> Room for NaiveRoom<B> {
    fn admits_alone(&self, task: &Task) -> Result<(), Refusal> {
        self.memory.admits_alone(task)
    }

    fn clear(&mut self) {
        self.layout.clear();
    }

    fn place(&mut self, task: &Task, group: Option<usize>) -> Result<usize, Refusal> {
        if let Some((group, _)) = self.layout.find(task.id) {
            return Ok(group);
        }
        let profile = Profile::new(task, &self.rules.prices);
        let groups = self.layout.groups.len();
        let stay = group.filter(|&group| group < groups);
        let mut refused = None;
        for group in stay.into_iter().chain(0..groups) {
            match self.layout.with(&profile, group, &self.memory, &self.rules) {
                Ok(iteration) => {
                    self.layout.seat(profile, group, iteration);
                    return Ok(group);
                }
                Err(Rejection::Memory {
                    device,
                    load,
                    tasks,
                }) => refused = Some((device, load, tasks)),
                Err(_) => {}
            }
        }
        let (device, load, tasks) = refused.unwrap_or((0, task.load, 1));
        Err(self.memory.refusal(device, load, tasks))
    }

    fn remove(&mut self, task: TaskId) {
        self.layout.remove(task, &self.rules);
    }

    fn regroup(&mut self) -> Option<String> {
        None
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        self.layout.members()
    }

    fn seconds_per_step(&self, task: TaskId) -> Option<f64> {
        let (group, _) = self.layout.find(task)?;
        self.model?;
        Some(self.layout.iteration_seconds(group, &self.rules))
    }
}
