use serde::{Deserialize, Serialize};

use crate::Passage;

/// What a tensor is to the stage that it is sent to. A group's steps follow each other, so that no two
/// parcels under way are for the same thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Parcel {
    /// Output of the stage below.
    Hidden(Passage),
    /// Gradient of the stage's own output.
    Gradient(Passage),
    /// Squares of a group's gradients at the stages above.
    SquaresAbove(usize),
    /// Squares of a group's gradients at all stages.
    Squares(usize),
}
