//! Rooms that are easy to follow: one task a device, and anything goes.

use loraloom_scheduler::{MeasuredIteration, Member, Refusal, Room, Task, TaskId};

/// One task a device.
pub(crate) struct OneEach(Vec<Option<TaskId>>);

impl OneEach {
    pub(crate) fn new(devices: usize) -> Self {
        Self(vec![None; devices])
    }
}

impl Room for OneEach {
    fn clear(&mut self) {
        self.0.fill(None);
    }

    fn place(&mut self, task: &Task, group: Option<usize>) -> Result<usize, Refusal> {
        let free = |&device: &usize| self.0[device].is_none();
        let device = group.filter(free).or_else(|| (0..self.0.len()).find(free));
        let device = device.ok_or(Refusal {
            reason: "every device has a task".to_owned(),
        })?;
        self.0[device] = Some(task.id);
        Ok(device)
    }

    fn remove(&mut self, task: TaskId) {
        for device in &mut self.0 {
            device.take_if(|there| *there == task);
        }
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        let member = |&task: &TaskId| Member { task, parts: 1 };
        self.0
            .iter()
            .map(|device| device.iter().map(member).collect())
            .collect()
    }

    fn measured(&mut self, iteration: &MeasuredIteration) {
        assert_eq!(iteration.memory.len(), self.0.len());
        assert!(iteration.seconds > 0.013);
        for measured in &iteration.memory {
            assert!(measured.peak_in_use_bytes > Some(100_000_000));
        }
    }
}

/// Refuses, moves and splits at random, but never refuses all.
pub(crate) struct Chaos {
    groups: Vec<Vec<Member>>,
    random: u64,
}

impl Chaos {
    pub(crate) fn new(devices: usize, seed: u64) -> Self {
        Self {
            groups: vec![Vec::new(); devices],
            random: seed,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) as usize % end
    }
}

impl Room for Chaos {
    fn clear(&mut self) {
        self.groups.iter_mut().for_each(Vec::clear);
    }

    fn place(&mut self, task: &Task, _: Option<usize>) -> Result<usize, Refusal> {
        if self.groups.iter().any(|group| !group.is_empty()) && self.below(3) == 0 {
            let reason = "a whim".to_owned();
            return Err(Refusal { reason });
        }
        let group = self.below(self.groups.len());
        let member = Member {
            task: task.id,
            parts: 1 + self.below(5),
        };
        self.groups[group].push(member);
        Ok(group)
    }

    fn remove(&mut self, task: TaskId) {
        for group in &mut self.groups {
            group.retain(|member| member.task != task);
        }
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        self.groups.clone()
    }
}
