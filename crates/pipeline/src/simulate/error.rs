use thiserror::Error;

use crate::schedule::Operation;

/// Error of a simulation.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TimelineError {
    /// A stage waits for an operation that never comes.
    #[error("deadlock: stage {stage} waits forever before operation {position}, {operation}")]
    Deadlock {
        /// The first stage that waits.
        stage: usize,
        /// Place of the operation in the stage's list, from 0.
        position: usize,
        /// The operation that cannot start.
        operation: Operation,
    },
    /// An operation appears twice in a stage's list.
    #[error("stage {stage} lists {operation} twice, the second time as operation {position}")]
    Repeated {
        /// The stage.
        stage: usize,
        /// Place of the second in the stage's list, from 0.
        position: usize,
        /// The operation.
        operation: Operation,
    },
    /// Lists, costs and links do not fit each other.
    #[error("{expected} {what} expected, {found} found")]
    Mismatch {
        /// The items that were counted.
        what: &'static str,
        /// Number in the lists.
        expected: usize,
        /// Number in costs or links.
        found: usize,
    },
    /// A cost is negative or not finite.
    #[error("a pass of group {group} cannot take {seconds} s on stage {stage}")]
    Cost {
        /// The stage.
        stage: usize,
        /// The group.
        group: usize,
        /// The cost.
        seconds: f64,
    },
    /// A bandwidth is not positive, or a latency is negative or not finite.
    #[error("link {index} cannot have {bytes_per_second} bytes/s and a latency of {latency} s")]
    Link {
        /// Between stages `index` and `index + 1`.
        index: usize,
        /// Its bandwidth.
        bytes_per_second: f64,
        /// Its latency, seconds.
        latency: f64,
    },
    /// A size is negative or not finite.
    #[error("a micro-batch of group {group} cannot have {bytes} bytes")]
    Bytes {
        /// The group.
        group: usize,
        /// Its size.
        bytes: f64,
    },
}

impl TimelineError {
    pub(super) fn expect(
        what: &'static str,
        expected: usize,
        found: usize,
    ) -> Result<(), TimelineError> {
        if expected == found {
            return Ok(());
        }
        Err(Self::Mismatch {
            what,
            expected,
            found,
        })
    }
}
