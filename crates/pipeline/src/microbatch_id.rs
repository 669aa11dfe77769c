use serde::{Deserialize, Serialize};

/// Which micro-batch of which group passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MicrobatchId {
    /// Group of tasks.
    pub group: usize,
    /// Micro-batch within the group's step.
    pub microbatch: usize,
}
