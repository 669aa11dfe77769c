use serde::{Deserialize, Serialize};

use super::{Operation, PipelineShape, gpipe, lorapp, one_f_one_b};

/// In which order stages run the passes of several groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Schedule {
    /// 1F1B over all groups' micro-batches: another group's pass fills a slot that would be idle.
    #[default]
    #[serde(rename = "lorapp")]
    LoraPp,
    /// One group after another, each by 1F1B.
    #[serde(rename = "one_f_one_b")]
    OneFOneB,
    /// One group after another, each with all forward passes before the first backward pass.
    #[serde(rename = "gpipe")]
    GPipe,
}

impl Schedule {
    /// Every stage's operations in the order it runs them.
    ///
    /// All schedules run a group's micro-batches backward in the order 0, 1, …, so gradients are
    /// summed in the same order and give the same bits.
    pub fn operations(self, shape: &PipelineShape) -> Vec<Vec<Operation>> {
        match self {
            Self::LoraPp => lorapp::operations(shape),
            Self::OneFOneB => one_f_one_b::operations(shape),
            Self::GPipe => gpipe::operations(shape),
        }
    }
}
