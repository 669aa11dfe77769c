//! Sequences and other tables of a batch as small device buffers.

use std::sync::{Arc, Mutex, PoisonError};

use batchlora_kernels::launch::table;
use burn_cubecl::{CubeDevice, cubecl::client::Client, tensor::CubeTensor};

use crate::Sequences;

/// Words per sequence: first row, rows.
pub(super) const SEQUENCE_WORDS: usize = 2;

/// A table of a batch on each device that needs it, uploaded on first use and shared by all layers.
#[derive(Debug)]
pub(crate) struct DeviceTables<T>(Mutex<Vec<(CubeDevice, T)>>);

impl<T> Default for DeviceTables<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> DeviceTables<T> {
    pub(crate) fn get(&self, device: &CubeDevice, upload: impl FnOnce() -> T) -> T {
        // Tables are added complete, so a panic elsewhere leaves no partial one.
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = tables.iter().find(|(of, _)| of == device) {
            return found.clone();
        }
        let made = upload();
        tables.push((device.clone(), made.clone()));
        made
    }
}

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
