//! Sequences as a small device buffer.

use std::sync::Arc;

use batchlora_kernels::launch::table;
use burn_cubecl::{CubeDevice, cubecl::client::Client, tensor::CubeTensor};

use crate::Sequences;

/// Words per sequence: first row, rows.
pub(super) const SEQUENCE_WORDS: usize = 2;

/// The sequences that have rows on a device, longest first; those of one length in batch order.
#[derive(Debug, Clone)]
pub(crate) struct SequenceTable {
    pub(super) words: CubeTensor,
    /// Rows of each sequence.
    pub(super) lengths: Arc<[usize]>,
}

impl SequenceTable {
    pub(crate) fn upload(sequences: &Sequences, client: &Client, device: &CubeDevice) -> Self {
        let mut order: Vec<_> = sequences.iter().filter(|rows| !rows.is_empty()).collect();
        order.sort_by_key(|rows| std::cmp::Reverse(rows.len()));
        let words = order.iter().flat_map(|rows| [rows.start, rows.len()]);
        let words: Vec<u32> = words.map(|word| word as u32).collect();
        Self {
            words: table(client, device, &words),
            lengths: order.iter().map(ExactSizeIterator::len).collect(),
        }
    }
}
