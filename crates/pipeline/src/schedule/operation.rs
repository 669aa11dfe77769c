use std::fmt;

/// An operation of a stage. Groups, micro-batches and iterations count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// One micro-batch through the stage's layers.
    Forward {
        /// Group of tasks.
        group: usize,
        /// Micro-batch of the group within the iteration.
        microbatch: usize,
        /// Iteration it belongs to.
        iteration: usize,
    },
    /// The gradient of one micro-batch back through the stage's layers.
    Backward {
        /// Group of tasks.
        group: usize,
        /// Micro-batch of the group within the iteration.
        microbatch: usize,
        /// Iteration it belongs to.
        iteration: usize,
    },
    /// The optimizer step of a group's adapters on the stage.
    Step {
        /// Group whose adapters are updated.
        group: usize,
        /// Iteration it belongs to.
        iteration: usize,
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

    /// The iteration it belongs to.
    pub fn iteration(&self) -> usize {
        match *self {
            Self::Forward { iteration, .. }
            | Self::Backward { iteration, .. }
            | Self::Step { iteration, .. } => iteration,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward {
                group,
                microbatch,
                iteration,
            } => write!(
                formatter,
                "forward of group {group}, micro-batch {microbatch}, iteration {iteration}"
            ),
            Self::Backward {
                group,
                microbatch,
                iteration,
            } => write!(
                formatter,
                "backward of group {group}, micro-batch {microbatch}, iteration {iteration}"
            ),
            Self::Step { group, iteration } => {
                write!(
                    formatter,
                    "optimizer step of group {group}, iteration {iteration}"
                )
            }
        }
    }
}
