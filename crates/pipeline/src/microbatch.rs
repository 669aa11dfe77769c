use batchlora::{DropoutDraw, Segments};
use loraloom_model::SequenceBatch;

/// What every layer needs to know of a batch: its sequences and whose they are.
#[derive(Debug, Clone)]
pub struct Microbatch {
    /// Sequences and their rotary tables.
    pub batch: SequenceBatch,
    /// Which rows belong to which adapter slot.
    pub segments: Segments,
    /// Where each slot stands in its dropout counter; `None` is evaluation, without dropout.
    pub draws: Option<Vec<DropoutDraw>>,
}
