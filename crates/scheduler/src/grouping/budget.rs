use std::fmt::Debug;

use crate::{DeviceMemory, Load, Refusal, Task};

/// The memory of a device, as far as tasks may have it.
pub trait Budget: Debug {
    /// Whether `tasks` tasks that together ask for `load` fit. A set of tasks that fits must still
    /// fit without one of them.
    fn fits(&self, load: Load, tasks: usize) -> bool;

    /// Why they do not fit, with the numbers. Asked only about what does not fit, and rarely: the
    /// answer may be slow.
    fn refusal(&self, load: Load, tasks: usize) -> Refusal;

    /// The memory that learns; `None` for one that is known.
    fn learns(&mut self) -> Option<&mut DeviceMemory> {
        None
    }

    /// As [`learns`](Self::learns), to look at.
    fn learnt(&self) -> Option<&DeviceMemory> {
        None
    }
}

/// Memory that never ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unlimited;

impl Budget for Unlimited {
    fn fits(&self, _: Load, _: usize) -> bool {
        true
    }

    fn refusal(&self, _: Load, _: usize) -> Refusal {
        Refusal {
            reason: "memory is not limited".into(),
        }
    }
}

/// Whose memory a group's tasks need.
#[derive(Debug, Clone)]
pub(super) enum Memory<B> {
    /// Every group's tasks need that of each device: the stages of one pipeline.
    Shared(Vec<B>),
    /// The tasks of group g need that of device g.
    PerGroup(Vec<B>),
}

impl<B: Budget> Memory<B> {
    /// The device that tasks in `group` would not fit on, if there is one. `load` is what they ask
    /// of one device: with those of all groups where memory is shared.
    pub(super) fn overfull(&self, group: usize, load: Load, tasks: usize) -> Option<usize> {
        match self {
            Self::Shared(budgets) => budgets.iter().position(|budget| !budget.fits(load, tasks)),
            Self::PerGroup(budgets) => match budgets.get(group) {
                Some(budget) => (!budget.fits(load, tasks)).then_some(group),
                None => None,
            },
        }
    }

    pub(super) fn refusal(&self, device: usize, load: Load, tasks: usize) -> Refusal {
        let (Self::Shared(budgets) | Self::PerGroup(budgets)) = self;
        match budgets.get(device) {
            Some(budget) if budgets.len() > 1 => {
                let Refusal { reason } = budget.refusal(load, tasks);
                Refusal {
                    reason: format!("device {device}: {reason}"),
                }
            }
            Some(budget) => budget.refusal(load, tasks),
            None => Unlimited.refusal(load, tasks),
        }
    }

    /// Whether a task has enough memory with nothing beside it.
    pub(super) fn admits_alone(&self, task: &Task) -> Result<(), Refusal> {
        let refused = match self {
            Self::Shared(_) => self.overfull(0, task.load, 1),
            Self::PerGroup(budgets) => {
                let devices = 0..budgets.len();
                let fits = |&device: &usize| self.overfull(device, task.load, 1).is_none();
                match devices.clone().find(fits) {
                    Some(_) => None,
                    // All refuse; the first speaks for them.
                    None => devices.min(),
                }
            }
        };
        refused.map_or(Ok(()), |device| Err(self.refusal(device, task.load, 1)))
    }
}
