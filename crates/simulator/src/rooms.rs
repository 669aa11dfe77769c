//! Baselines: rooms that group by memory alone.

use loraloom_scheduler::{
    Budget, DeviceMemory, Load, MeasuredIteration, Member, Refusal, Room, Task, TaskId,
};

use super::Padding;

/// Devices that are filled by memory alone, without regard to step times.
#[derive(Debug)]
pub(crate) struct FilledRoom {
    devices: Vec<Device>,
    rule: Filling,
}

/// Rule of placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filling {
    /// One task a device, as in today's clusters.
    OneTask,
    /// The first device with room, as in mLoRA, with this padding.
    FirstFit(Padding),
    /// The device with room that has the fewest tokens a step.
    LeastLoaded,
}

impl Filling {
    /// Padding of the batches.
    pub(crate) fn padding(self) -> Padding {
        match self {
            Self::FirstFit(padding) => padding,
            Self::OneTask | Self::LeastLoaded => Padding::None,
        }
    }
}

#[derive(Debug)]
struct Device {
    memory: DeviceMemory,
    tasks: Vec<Task>,
}

/// Load of tasks in one batch.
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

    /// Checks that a task fits on a device.
    fn fits(&self, device: &Device, task: &Task) -> Result<(), Refusal> {
        if self.rule == Filling::OneTask && !device.tasks.is_empty() {
            let reason = "every device has a task".to_owned();
            return Err(Refusal { reason });
        }
        let load = load(device.tasks.iter().chain([task]), self.rule.padding());
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
                self.devices[device]
                    .tasks
                    .iter()
                    .map(|task| task.tokens_per_step)
                    .sum::<usize>()
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

    fn run(&mut self) -> Option<u64> {
        let padding = self.rule.padding();
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

#[cfg(test)]
mod tests {
    use loraloom_scheduler::{Coefficients, DeviceMemory, MemoryModel, Room, Task, TaskId};

    use super::{FilledRoom, Filling, Padding};
    use crate::Costs;

    /// `tokens` tokens fit on each device; the margin of a quarter is added to them.
    fn room(devices: usize, tokens: u64, rule: Filling) -> FilledRoom {
        let prior = Coefficients::new(0.0, 1000.0, 0.0).expect("sizes");
        let limit = tokens * 1250;
        let memory = DeviceMemory::new("device", limit, 0, 1.0, MemoryModel::new(prior, 0));
        FilledRoom::new(vec![memory.expect("a share"); devices], rule)
    }

    fn task(id: u64, rows: usize, length: usize) -> Task {
        let costs = Costs {
            adapter_bytes_per_rank: 0.0,
            ..Costs::default()
        };
        Task {
            id: TaskId(id),
            name: format!("job-{id}"),
            tenant: "default".to_owned(),
            priority: 0,
            arrival: id,
            rank: 8,
            rows_per_step: rows,
            tokens_per_step: rows * length,
            total_steps: 10,
            passes_per_step: 1,
            max_parts: rows,
            load: costs.load(8, rows, length),
        }
    }

    fn sizes(room: &FilledRoom) -> Vec<usize> {
        room.groups().iter().map(Vec::len).collect()
    }

    #[test]
    fn one_task_has_a_device_to_itself() {
        let mut room = room(2, 5000, Filling::OneTask);
        assert_eq!(room.place(&task(0, 4, 1000), None), Ok(0));
        assert_eq!(room.place(&task(1, 4, 100), Some(1)), Ok(1));
        let refusal = room.place(&task(2, 1, 10), None).expect_err("none left");
        assert_eq!(refusal.reason, "every device has a task");
        room.remove(TaskId(0));
        assert_eq!(room.place(&task(4, 4, 1000), Some(1)), Ok(0));
        room.clear();
        assert_eq!(sizes(&room), [0, 0]);
    }

    #[test]
    fn devices_fill_in_order_and_rows_are_padded_to_the_longest() {
        let mut room = room(2, 8000, Filling::FirstFit(Padding::ToLongest));
        // Four rows of 100 tokens take as much memory as four of 1,000.
        let places: Vec<_> = [1000, 100, 100, 1000]
            .into_iter()
            .zip(0..)
            .map(|(length, id)| room.place(&task(id, 4, length), None))
            .collect();
        assert_eq!(places, [Ok(0), Ok(0), Ok(1), Ok(1)]);
        assert!(room.place(&task(9, 1, 10), None).is_err());
        let mut room = self::room(2, 8000, Filling::FirstFit(Padding::None));
        for id in 0..6 {
            assert_eq!(room.place(&task(id, 4, 300), None), Ok(0));
        }
        assert_eq!(room.place(&task(6, 4, 300), None), Ok(1));
    }

    #[test]
    fn a_task_joins_the_device_with_the_fewest_tokens() {
        let mut room = room(3, 8000, Filling::LeastLoaded);
        let lengths = [1000, 100, 200, 300, 50, 500];
        let places: Vec<_> = lengths
            .into_iter()
            .zip(0..)
            .map(|(length, id)| room.place(&task(id, 4, length), None))
            .collect();
        // 4,000 tokens, then 400 + 1,200, and 800 + 200 + 2,000.
        assert_eq!(places, [Ok(0), Ok(1), Ok(2), Ok(1), Ok(2), Ok(2)]);
        // A task stays on its device.
        assert_eq!(room.place(&task(6, 4, 10), Some(0)), Ok(0));
    }
}
