use serde::{Deserialize, Serialize};

use crate::MicrobatchId;

/// What a tensor is to the stage that it is sent to. A group's steps follow each other, so that no two
/// tensors under way are for the same thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tag {
    /// Output of the stage below.
    Hidden(MicrobatchId),
    /// Gradient of the stage's own output.
    Gradient(MicrobatchId),
    /// Squares of a group's gradients at the stages above.
    SquaresAbove(usize),
    /// Squares of a group's gradients at all stages.
    Squares(usize),
}
