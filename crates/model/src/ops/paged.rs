//! Keys and values in blocks that sequences share, and their reference in plain tensor operations.

use std::sync::Arc;

use burn::{
    backend::{Backend, TensorMetadata, tensor::FloatTensor},
    tensor::Slice,
};

use super::{
    AttentionShape, Sequences,
    padded_attention::{indices, last_queries},
};

/// Tokens of a block.
pub const BLOCK_TOKENS: usize = 16;

/// Where the keys and values of a batch's sequences are in a [`LayerCache`](crate::LayerCache): the same for all
/// layers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BlockTables(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sequences: Vec<BlockTable>,
    #[cfg(feature = "cubecl")]
    tables: super::kernels::DeviceTables<super::kernels::RowTable>,
}

/// The blocks of a sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BlockTable {
    /// Tokens before those of the batch.
    pub past: usize,
    /// Blocks of [`BLOCK_TOKENS`] tokens in their order, enough for the batch's tokens as well.
    pub blocks: Vec<u32>,
}

impl BlockTable {
    /// The row of a position in a cache.
    pub(crate) fn slot(&self, position: usize) -> usize {
        self.blocks[position / BLOCK_TOKENS] as usize * BLOCK_TOKENS + position % BLOCK_TOKENS
    }
}

impl BlockTables {
    /// One table for each sequence of a batch, in their order.
    pub fn new(sequences: Vec<BlockTable>) -> Self {
        Self(Arc::new(Inner {
            sequences,
            #[cfg(feature = "cubecl")]
            tables: super::kernels::DeviceTables::default(),
        }))
    }

    /// The table of each sequence.
    pub fn sequences(&self) -> &[BlockTable] {
        &self.0.sequences
    }

    /// Checks the tables against the sequences of a batch and the blocks that there are.
    ///
    /// # Errors
    /// What is wrong, if a token has no block.
    pub fn check(&self, sequences: &Sequences, blocks: usize) -> Result<(), String> {
        let tables = self.sequences();
        if tables.len() != sequences.len() {
            let (tables, sequences) = (tables.len(), sequences.len());
            return Err(format!("{tables} block tables for {sequences} sequences"));
        }
        for (rows, table) in sequences.iter().zip(tables) {
            let (tokens, held) = (table.past + rows.len(), table.blocks.len() * BLOCK_TOKENS);
            if tokens > held {
                return Err(format!("{tokens} tokens in blocks for {held}"));
            }
            if let Some(block) = table.blocks.iter().find(|&&block| block as usize >= blocks) {
                return Err(format!("block {block} of {blocks}"));
            }
        }
        Ok(())
    }

    /// The row in a cache of every token of the batch.
    pub(super) fn slots(&self, sequences: &Sequences) -> Vec<usize> {
        let slots = sequences.iter().zip(self.sequences());
        slots
            .flat_map(|(rows, table)| (0..rows.len()).map(|at| table.slot(table.past + at)))
            .collect()
    }

    /// The tables on a device, uploaded on first use.
    #[cfg(feature = "cubecl")]
    pub(super) fn rows(
        &self,
        sequences: &Sequences,
        client: &burn_cubecl::cubecl::client::Client,
        device: &burn_cubecl::CubeDevice,
    ) -> super::kernels::RowTable {
        let upload = || super::kernels::RowTable::upload(self, sequences, client, device);
        self.0.tables.get(device, upload)
    }
}

/// Rows of `cache`, those of the batch's tokens replaced by the rows of x.
pub(super) fn append<B: Backend>(
    cache: FloatTensor<B>,
    x: FloatTensor<B>,
    sequences: &Sequences,
    tables: &BlockTables,
) -> FloatTensor<B> {
    let rows = cache.shape()[0];
    let mut from: Vec<i32> = (0..rows as i32).collect();
    for (row, slot) in tables.slots(sequences).into_iter().enumerate() {
        from[slot] = (rows + row) as i32;
    }
    let from = indices::<B>(from, &cache.device());
    B::float_select(B::float_cat(vec![cache, x], 0), 0, from)
}

/// Attention of one sequence after another.
pub(super) fn attention<B: Backend>(
    q: FloatTensor<B>,
    keys: FloatTensor<B>,
    values: FloatTensor<B>,
    shape: &AttentionShape,
    tables: &BlockTables,
) -> FloatTensor<B> {
    let sequences = shape.sequences.iter().zip(tables.sequences());
    let outputs = sequences
        .filter(|(rows, _)| !rows.is_empty())
        .map(|(rows, table)| {
            let slots = (0..table.past + rows.len()).map(|position| table.slot(position) as i32);
            let slots = indices::<B>(slots.collect(), &q.device());
            let queries = B::float_slice(q.clone(), &[Slice::from(rows), Slice::full()]);
            let [keys, values] =
                [&keys, &values].map(|cache| B::float_select(cache.clone(), 0, slots.clone()));
            last_queries::<B>(queries, keys, values, shape)
        });
    B::float_cat(outputs.collect(), 0)
}
