//! Baselines: rooms that group by memory alone.

use loraloom_scheduler::{
    Budget, DeviceMemory, Load, MeasuredIteration, Member, Refusal, Room, Task, TaskId,
};

use super::Padding;

/// Devices that are filled by memory alone, with no thought for how long an iteration takes.
#[derive(Debug)]
pub(crate) struct FilledRoom {
    devices: Vec<Device>,
    rule: Filling,
}

/// How devices are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filling {
    /// A task has a device to itself: today's clusters.
    OneTask,
    /// The first device with room, batches padded or not: mLoRA.
    FirstFit(Padding),
    /// The device with room that has the fewest tokens a step.
    LeastLoaded,
}

#[derive(Debug)]
struct Device {
    memory: DeviceMemory,
    tasks: Vec<Task>,
}

/// What tasks in one batch ask of memory.
fn load<'a>(tasks: impl IntoIterator<Item = &'a Task> + Clone, padding: Padding) -> Load {
    let tasks = || tasks.clone().into_iter();
    let sum: Load = tasks().map(|task| task.load).sum();
    if padding == Padding::None {
        return sum;
    }
    let length = |task: &Task| task.load.squared_tokens.div_ceil(task.load.tokens.max(1));
    let longest = tasks().map(length).max().unwrap_or(0);
    let rows: u64 = tasks()
        .map(|task| task.load.tokens.div_ceil(length(task).max(1)))
        .sum();
    Load {
        tokens: rows * longest,
        squared_tokens: rows * longest * longest,
        ..sum
    }
}

impl FilledRoom {
    pub(crate) fn new(devices: Vec<DeviceMemory>, rule: Filling) -> Self {
        let device = |memory| Device {
            memory,
            tasks: Vec::new(),
        };
        Self {
            devices: devices.into_iter().map(device).collect(),
            rule,
        }
    }

    fn find(&self, task: TaskId) -> Option<usize> {
        self.devices
            .iter()
            .position(|device| device.tasks.iter().any(|there| there.id == task))
    }

    fn padding(&self) -> Padding {
        match self.rule {
            Filling::FirstFit(padding) => padding,
            Filling::OneTask | Filling::LeastLoaded => Padding::None,
        }
    }

    /// Whether a task fits on a device.
    fn fits(&self, device: &Device, task: &Task) -> Result<(), Refusal> {
        if self.rule == Filling::OneTask && !device.tasks.is_empty() {
            let reason = "every device has its task".to_owned();
            return Err(Refusal { reason });
        }
        let load = load(device.tasks.iter().chain([task]), self.padding());
        let tasks = device.tasks.len() + 1;
        if Budget::fits(&device.memory, load, tasks) {
            Ok(())
        } else {
            Err(device.memory.refusal(load, tasks))
        }
    }
}

impl Room for FilledRoom {
    fn admits_alone(&self, task: &Task) -> Result<(), Refusal> {
        let mut refused = None;
        for device in &self.devices {
            if Budget::fits(&device.memory, task.load, 1) {
                return Ok(());
            }
            refused.get_or_insert_with(|| device.memory.refusal(task.load, 1));
        }
        refused.map_or(Ok(()), Err)
    }

    fn clear(&mut self) {
        for device in &mut self.devices {
            device.tasks.clear();
        }
    }

    fn place(&mut self, task: &Task, group: Option<usize>) -> Result<usize, Refusal> {
        if let Some(device) = self.find(task.id) {
            return Ok(device);
        }
        let mut order: Vec<usize> = (0..self.devices.len()).collect();
        if self.rule == Filling::LeastLoaded {
            order.sort_by_key(|&device| {
                let tasks = self.devices[device].tasks.iter();
                tasks.map(|task| task.tokens_per_step).sum::<usize>()
            });
        }
        let stay = group.filter(|&group| group < self.devices.len());
        let mut refused = None;
        for index in stay.into_iter().chain(order) {
            match self.fits(&self.devices[index], task) {
                Ok(()) => {
                    self.devices[index].tasks.push(task.clone());
                    return Ok(index);
                }
                Err(refusal) => refused = Some(refusal),
            }
        }
        Err(refused.unwrap_or(Refusal {
            reason: "there is no device".to_owned(),
        }))
    }

    fn remove(&mut self, task: TaskId) {
        for device in &mut self.devices {
            device.tasks.retain(|there| there.id != task);
        }
    }

    fn regroup(&mut self) -> Option<String> {
        None
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        let member = |task: &Task| Member {
            task: task.id,
            parts: 1,
        };
        self.devices
            .iter()
            .map(|device| device.tasks.iter().map(member).collect())
            .collect()
    }

    /// They do not look at step times.
    fn seconds_per_step(&self, _task: TaskId) -> Option<f64> {
        None
    }

    fn run(&mut self) -> Option<u64> {
        let padding = self.padding();
        for device in &mut self.devices {
            let load = load(&device.tasks, padding);
            device.memory.run(load);
        }
        None
    }

    fn measured(&mut self, iteration: &MeasuredIteration) {
        for (device, measured) in self.devices.iter_mut().zip(&iteration.memory) {
            device.memory.observe(iteration.load, *measured);
        }
    }
}
