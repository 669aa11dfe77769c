use std::fmt::Debug;

use crate::{DeviceMemory, Load, Refusal, Task};

/// The memory of a device that tasks may use.
pub trait Budget: Debug {
    /// True if `tasks` tasks that together ask for `load` fit. A set of tasks that fits must still
    /// fit without one of them.
    fn fits(&self, load: Load, tasks: usize) -> bool;

    /// The reason why they do not fit, with the numbers. Called only if they do not fit; may be slow.
    fn refusal(&self, load: Load, tasks: usize) -> Refusal;

    /// The memory model behind it, if it learns.
    fn learns(&mut self) -> Option<&mut DeviceMemory> {
        None
    }

    /// As [`learns`](Self::learns), for reading.
    fn learnt(&self) -> Option<&DeviceMemory> {
        None
    }
}

/// The devices whose memory the tasks of a group need.
#[derive(Debug, Clone)]
pub(super) enum Memory<B> {
    /// All groups need memory of all devices: the stages of one pipeline.
    Shared(Vec<B>),
    /// Group g needs memory of device g.
    PerGroup(Vec<B>),
}

impl<B: Budget> Memory<B> {
    /// A device on which the tasks of `group` do not fit, if there is one. `load` is what they ask of one
    /// device; where memory is shared, with the tasks of all groups.
    pub(super) fn overfull(&self, group: usize, load: Load, tasks: usize) -> Option<usize> {
        match self {
            Self::Shared(budgets) => budgets.iter().position(|budget| !budget.fits(load, tasks)),
            Self::PerGroup(budgets) => (!budgets[group].fits(load, tasks)).then_some(group),
        }
    }

    pub(super) fn refusal(&self, device: usize, load: Load, tasks: usize) -> Refusal {
        let (Self::Shared(budgets) | Self::PerGroup(budgets)) = self;
        let mut refusal = budgets[device].refusal(load, tasks);
        if budgets.len() > 1 {
            refusal.reason = format!("device {device}: {}", refusal.reason);
        }
        refusal
    }

    /// Checks that a task fits alone.
    pub(super) fn admits_alone(&self, task: &Task) -> Result<(), Refusal> {
        let refused = match self {
            Self::Shared(_) => self.overfull(0, task.load, 1),
            Self::PerGroup(budgets) => {
                // If all refuse, the reason of the first is given.
                let none_fits = budgets.iter().all(|budget| !budget.fits(task.load, 1));
                none_fits.then_some(0)
            }
        };
        refused.map_or(Ok(()), |device| Err(self.refusal(device, task.load, 1)))
    }
}
