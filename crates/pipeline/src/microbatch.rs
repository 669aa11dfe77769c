use batchlora::{DropoutDraw, Segments};
use loraloom_model::{RotaryTables, SequenceBatch, Sequences, Targets};

/// Rows of one group that go through the stages together, as the host lays them out. All stages get
/// the same description; each makes its own tables of it.
#[derive(Debug, Clone)]
pub struct Microbatch {
    /// Token ids, `[rows]`, sequence after sequence.
    pub ids: Vec<u32>,
    /// Where the sequences begin and end.
    pub sequences: Sequences,
    /// Tokens that every sequence has behind it in a cache.
    pub past: usize,
    /// What dynamic rope scaling takes for the length of each sequence; see
    /// [`SequenceBatch::new`]. Unused with a past.
    pub rope_lengths: Vec<usize>,
    /// Which rows belong to which slot of the group.
    pub segments: Segments,
    /// Where each slot stands in its dropout counter; `None` is evaluation, without dropout.
    pub draws: Option<Vec<DropoutDraw>>,
    /// What is to be predicted.
    pub targets: Targets,
}

impl Microbatch {
    /// The tables that a stage's layers share.
    pub(crate) fn place(&self, rotary: &RotaryTables) -> PlacedMicrobatch {
        let sequences = self.sequences.clone();
        let batch = if self.past == 0 {
            SequenceBatch::new(rotary, sequences, &self.rope_lengths)
        } else {
            SequenceBatch::following(rotary, sequences, self.past)
        };
        PlacedMicrobatch {
            batch,
            segments: self.segments.clone(),
            draws: self.draws.clone(),
        }
    }
}

/// What every layer of a stage needs to know of a micro-batch.
#[derive(Debug, Clone)]
pub(crate) struct PlacedMicrobatch {
    /// Sequences and their rotary tables.
    pub(crate) batch: SequenceBatch,
    /// Which rows belong to which adapter slot.
    pub(crate) segments: Segments,
    /// Where each slot stands in its dropout counter.
    pub(crate) draws: Option<Vec<DropoutDraw>>,
}
