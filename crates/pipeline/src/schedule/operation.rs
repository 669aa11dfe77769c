use std::fmt;

/// An operation of a stage. Groups, micro-batches and steps count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// One micro-batch through the stage's layers.
    Forward {
        /// Group of tasks.
        group: usize,
        /// Micro-batch within the group's step.
        microbatch: usize,
        /// Optimizer step of the group.
        step: usize,
    },
    /// The gradient of one micro-batch back through the stage's layers.
    Backward {
        /// Group of tasks.
        group: usize,
        /// Micro-batch within the group's step.
        microbatch: usize,
        /// Optimizer step of the group.
        step: usize,
    },
    /// The optimizer step of a group's adapters on the stage.
    Step {
        /// Group whose adapters are updated.
        group: usize,
        /// Optimizer step of the group.
        step: usize,
    },
}

impl Operation {
    /// The group it works for.
    pub fn group(&self) -> usize {
        match *self {
            Self::Forward { group, .. }
            | Self::Backward { group, .. }
            | Self::Step { group, .. } => group,
        }
    }

    /// The optimizer step it belongs to.
    pub fn step(&self) -> usize {
        match *self {
            Self::Forward { step, .. } | Self::Backward { step, .. } | Self::Step { step, .. } => {
                step
            }
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward {
                group,
                microbatch,
                step,
            } => write!(
                formatter,
                "forward of group {group}, micro-batch {microbatch}, step {step}"
            ),
            Self::Backward {
                group,
                microbatch,
                step,
            } => write!(
                formatter,
                "backward of group {group}, micro-batch {microbatch}, step {step}"
            ),
            Self::Step { group, step } => {
                write!(formatter, "optimizer step {step} of group {group}")
            }
        }
    }
}
