use batchlora::{DropoutDraw, Segments};
use loraloom_model::{BlockTables, RotaryTables, SequenceBatch, Sequences, Targets};
use serde::{Deserialize, Serialize};

/// A micro-batch of a group's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MicrobatchId {
    /// Group of tasks.
    pub group: usize,
    /// Micro-batch within the group's step.
    pub microbatch: usize,
}

/// Rows of one group that go through the stages together, as the host lays them out. All stages get
/// the same description; each makes its own tables from it.
#[derive(Debug, Clone)]
pub struct Microbatch {
    /// Token ids, `[rows]`, sequence after sequence.
    pub ids: Vec<u32>,
    /// First row and length of each sequence.
    pub sequences: Sequences,
    /// Where the keys and values of the sequences are, if earlier tokens are in a cache.
    pub cached: Option<BlockTables>,
    /// Length of each sequence for dynamic rope scaling; see [`SequenceBatch::new`].
    pub rope_lengths: Vec<usize>,
    /// Rows of each slot of the group.
    pub segments: Segments,
    /// Position of each slot in its dropout counter; `None` is evaluation, without dropout.
    pub draws: Option<Vec<DropoutDraw>>,
    /// Tokens to predict.
    pub targets: Targets,
}

impl Microbatch {
    /// The tables that a stage's layers share.
    pub(super) fn place(&self, rotary: &RotaryTables) -> PlacedMicrobatch {
        let sequences = self.sequences.clone();
        let lengths = &self.rope_lengths;
        let batch = match &self.cached {
            None => SequenceBatch::new(rotary, sequences, lengths),
            Some(cached) => SequenceBatch::following(rotary, sequences, cached, lengths),
        };
        PlacedMicrobatch {
            batch,
            segments: self.segments.clone(),
            draws: self.draws.clone(),
        }
    }
}

/// The part of a micro-batch that every layer of a stage uses.
#[derive(Debug, Clone)]
pub(super) struct PlacedMicrobatch {
    /// Sequences and their rotary tables.
    pub(super) batch: SequenceBatch,
    /// Rows of each adapter slot.
    pub(super) segments: Segments,
    /// Position of each slot in its dropout counter.
    pub(super) draws: Option<Vec<DropoutDraw>>,
}
