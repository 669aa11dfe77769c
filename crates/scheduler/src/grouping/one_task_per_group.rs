use super::{Budget, budget::Memory};
use crate::{Member, Padding, Refusal, Room, SchedulerError, StepTimeModel, Task, TaskId, Work};

/// The baseline of today's clusters: a task has a device to itself.
#[derive(Debug, Clone)]
pub struct OneTaskPerGroup<B> {
    memory: Memory<B>,
    model: Option<StepTimeModel>,
    devices: Vec<Option<Task>>,
}

impl<B: Budget> OneTaskPerGroup<B> {
    /// A room of these devices; `model` only predicts.
    ///
    /// # Errors
    /// [`SchedulerError::NoDevices`].
    pub fn new(devices: Vec<B>, model: Option<StepTimeModel>) -> Result<Self, SchedulerError> {
        if devices.is_empty() {
            return Err(SchedulerError::NoDevices);
        }
        Ok(Self {
            devices: vec![None; devices.len()],
            memory: Memory::PerGroup(devices),
            model,
        })
    }

    fn find(&self, task: TaskId) -> Option<(usize, &Task)> {
        let mut devices = self.devices.iter().enumerate();
        devices.find_map(|(device, here)| {
            let here = here.as_ref().filter(|here| here.id == task)?;
            Some((device, here))
        })
    }
}

impl<B: Budget> Room for OneTaskPerGroup<B> {
    fn admits_alone(&self, task: &Task) -> Result<(), Refusal> {
        self.memory.admits_alone(task)
    }

    fn clear(&mut self) {
        self.devices.fill(None);
    }

    fn place(&mut self, task: &Task, group: Option<usize>) -> Result<usize, Refusal> {
        if let Some((device, _)) = self.find(task.id) {
            return Ok(device);
        }
        let free = |device: &usize| {
            let here = self.devices.get(*device);
            here.is_some_and(Option::is_none)
                && self.memory.overfull(*device, task.load, 1).is_none()
        };
        let stay = group.filter(free);
        let Some(device) = stay.or_else(|| (0..self.devices.len()).find(free)) else {
            self.admits_alone(task)?;
            return Err(Refusal {
                reason: format!(
                    "each of the {} devices that could hold it has its task",
                    self.devices.len()
                ),
            });
        };
        self.devices[device] = Some(task.clone());
        Ok(device)
    }

    fn remove(&mut self, task: TaskId) {
        if let Some((device, _)) = self.find(task) {
            self.devices[device] = None;
        }
    }

    fn regroup(&mut self) -> Option<String> {
        None
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        let used = self.devices.iter().rposition(Option::is_some);
        let devices = self.devices.iter().take(used.map_or(0, |last| last + 1));
        let member = |task: &Task| Member {
            task: task.id,
            parts: 1,
        };
        devices
            .map(|here| here.iter().map(member).collect())
            .collect()
    }

    fn seconds_per_step(&self, task: TaskId) -> Option<f64> {
        let (_, task) = self.find(task)?;
        let work = Work::of_group([(task, 1)], Padding::None);
        self.model.map(|model| model.seconds(&work))
    }
}
