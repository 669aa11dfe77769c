use burn::tensor::{DType, Device, Tensor};

use crate::{
    AttentionShape, BLOCK_TOKENS, BlockTables, LlamaConfig,
    ops::{append_kv, paged_attention},
};

/// Keys and values of one layer's past tokens, in blocks that sequences are given as they grow; see [`BlockTables`].
#[derive(Debug, Clone)]
pub struct LayerCache {
    /// Keys and values, `[blocks · BLOCK_TOKENS, kv_heads · head_dim]`.
    both: [Tensor<2>; 2],
}

impl LayerCache {
    /// A cache of so many blocks.
    pub fn new(blocks: usize, config: &LlamaConfig, dtype: DType, device: &Device) -> Self {
        let width = config.num_key_value_heads * config.head_dim;
        let empty = || Tensor::zeros([blocks * BLOCK_TOKENS, width], (device, dtype));
        Self {
            both: [empty(), empty()],
        }
    }

    /// Blocks of the cache.
    pub fn blocks(&self) -> usize {
        self.both[0].dims()[0] / BLOCK_TOKENS
    }

    /// Bytes of a block of one layer, whose elements have `element_bytes`.
    pub fn block_bytes(config: &LlamaConfig, element_bytes: usize) -> usize {
        2 * BLOCK_TOKENS * config.num_key_value_heads * config.head_dim * element_bytes
    }

    /// Writes k and v `[rows, kv_heads · head_dim]` of a batch's tokens, and attends with q `[rows, heads · head_dim]`
    /// over all tokens of their sequences; output as q.
    ///
    /// # Panics
    /// If the tables do not [fit](BlockTables::check) the batch and the cache.
    pub fn attend(
        &mut self,
        q: Tensor<2>,
        k: Tensor<2>,
        v: Tensor<2>,
        shape: &AttentionShape,
        tables: &BlockTables,
    ) -> Tensor<2> {
        // The cache is written in place if it has no other owner.
        let nothing = || Tensor::empty([0, 0], &k.device());
        let both = std::mem::replace(&mut self.both, [nothing(), nothing()]);
        self.both = append_kv(both, [k, v], &shape.sequences, tables);
        paged_attention(q, self.both.clone(), shape, tables)
    }
}
