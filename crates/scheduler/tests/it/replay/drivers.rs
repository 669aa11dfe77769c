//! Drivers that keep count: one that is easy to follow, and one that does anything it may.

use std::collections::BTreeMap;

use loraloom_scheduler::{
    Decision, Member, Outcome, Parking, SchedulerError, Task, TaskId, simulate::Driver,
};

/// First come, first served, one task a device.
#[derive(Default)]
pub(crate) struct OneEach {
    devices: usize,
    queue: Vec<TaskId>,
    running: Vec<TaskId>,
    pub(crate) ended: BTreeMap<TaskId, usize>,
    steps: BTreeMap<TaskId, usize>,
}

impl OneEach {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            devices,
            ..Self::default()
        }
    }
}

impl Driver for OneEach {
    fn submit(&mut self, task: Task, _: f64) -> Result<(), SchedulerError> {
        self.queue.push(task.id);
        Ok(())
    }

    fn decide(&mut self, _: f64) -> Decision {
        let free = (self.devices - self.running.len()).min(self.queue.len());
        self.running.extend(self.queue.drain(..free));
        let alone = |&task: &TaskId| vec![Member { task, parts: 1 }];
        Decision {
            groups: self.running.iter().map(alone).collect(),
            ..Decision::default()
        }
    }

    fn progressed(&mut self, task: TaskId, steps: usize) -> Result<(), SchedulerError> {
        assert!(steps > 0 && self.running.contains(&task));
        *self.steps.entry(task).or_default() += steps;
        Ok(())
    }

    fn measured(&mut self, members: &[Member], seconds: f64, bytes: f64) {
        assert!(members.len() == 1 && seconds > 0.013 && bytes > 1e8);
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome, _: f64) -> Result<(), SchedulerError> {
        assert_eq!(outcome, Outcome::Done);
        self.running.retain(|&running| running != task);
        let steps = self.steps[&task];
        assert_eq!(self.ended.insert(task, steps), None);
        Ok(())
    }
}

/// Parks, moves, splits and admits at random.
pub(crate) struct Chaos {
    devices: usize,
    random: u64,
    known: Vec<TaskId>,
    was_running: Vec<TaskId>,
}

impl Chaos {
    pub(crate) fn new(devices: usize, seed: u64) -> Self {
        Self {
            devices,
            random: seed,
            known: Vec::new(),
            was_running: Vec::new(),
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

impl Driver for Chaos {
    fn submit(&mut self, task: Task, _: f64) -> Result<(), SchedulerError> {
        self.known.push(task.id);
        Ok(())
    }

    fn decide(&mut self, _: f64) -> Decision {
        let mut groups = vec![Vec::new(); self.devices];
        // At least one trains, or time would stand still.
        for (index, task) in self.known.clone().into_iter().enumerate() {
            if index == 0 || self.below(3) > 0 {
                let (group, parts) = (self.below(self.devices), 1 + self.below(5));
                groups[group].push(Member { task, parts });
            }
        }
        groups.retain(|group| !group.is_empty());
        let running: Vec<TaskId> = groups.iter().flatten().map(|member| member.task).collect();
        let known = &self.known;
        let left = |task: &&TaskId| known.contains(task) && !running.contains(task);
        let parked = self.was_running.iter().filter(left);
        let parked = parked.map(|&task| Parking {
            task,
            by: None,
            reason: String::new(),
        });
        let parked = parked.collect();
        self.was_running = running;
        Decision {
            parked,
            groups,
            ..Decision::default()
        }
    }

    fn progressed(&mut self, _: TaskId, _: usize) -> Result<(), SchedulerError> {
        Ok(())
    }

    fn measured(&mut self, _: &[Member], _: f64, _: f64) {}

    fn finish(&mut self, task: TaskId, _: Outcome, _: f64) -> Result<(), SchedulerError> {
        assert!(self.known.contains(&task), "{task} ends twice");
        self.known.retain(|&known| known != task);
        Ok(())
    }
}
