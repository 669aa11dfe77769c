//! Keys and values in blocks: writing those of new tokens, and attention over them.
//!
//! A cube takes one token and some of the query heads that share a key and value head. Its units score as many keys at
//! a time as there are lanes, then each sums values along a few features. The order of sums follows from the token's
//! position alone: other tokens of the batch do not change its bits.

use std::sync::Arc;

use batchlora_kernels::launch::{
    by_rows, cube_dim, cubes, empty, record, record_elements, table, vector_size, writable,
};
use burn::backend::TensorMetadata;
use burn_cubecl::{
    CubeDevice,
    cubecl::{self, client::Client},
    tensor::CubeTensor,
};
use cubecl::prelude::*;

use super::rows::{LOWEST, UNITS, element_sum, row_max, row_sum};
use crate::{
    AttentionShape, Sequences,
    ops::{BLOCK_TOKENS, BlockTables},
};

/// Keys that are scored at a time.
const LANES: usize = 64;
/// Words of a token: its position, and the place of its sequence's blocks among the words.
const TOKEN_WORDS: usize = 2;

/// Tokens of a batch on a device, followed by the blocks of their sequences.
#[derive(Debug, Clone)]
pub(crate) struct RowTable {
    words: CubeTensor,
    rows: usize,
    /// Keys of all tokens, for the record of what a launch reads.
    ends: Arc<[usize]>,
}

impl RowTable {
    pub(crate) fn upload(
        tables: &BlockTables,
        sequences: &Sequences,
        client: &Client,
        device: &CubeDevice,
    ) -> Self {
        let mut place = sequences.rows() * TOKEN_WORDS;
        let (mut words, mut blocks, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for (rows, table) in sequences.iter().zip(tables.sequences()) {
            for at in 0..rows.len() {
                let position = table.past + at;
                words.extend([position as u32, place as u32]);
                ends.push(position + 1);
            }
            place += table.blocks.len();
            blocks.extend_from_slice(&table.blocks);
        }
        words.extend(blocks);
        Self {
            words: table(client, device, &words),
            rows: sequences.rows(),
            ends: ends.into(),
        }
    }
}

pub(super) fn append_kv(
    [keys, values]: [CubeTensor; 2],
    [k, v]: [CubeTensor; 2],
    sequences: &Sequences,
    tables: &BlockTables,
) -> (CubeTensor, CubeTensor) {
    let (keys, values, k, v) = (writable(keys), writable(values), by_rows(k), by_rows(v));
    let [rows, width] = k.shape().dims();
    let table = tables.rows(sequences, &k.client, &k.device);
    debug_assert_eq!(table.rows, rows);
    let size = vector_size(&[&keys, &values, &k, &v]);
    record(&[&k, &v], &[]);
    record_elements(keys.dtype, 2 * rows * width);
    let (client, dtype) = (k.client.clone(), k.dtype);
    append_kernel::launch(
        &client,
        cubes((rows * width / size).div_ceil(UNITS)),
        cube_dim(UNITS, 1),
        size,
        k.into_tensor_arg(),
        v.into_tensor_arg(),
        table.words.into_tensor_arg(),
        keys.clone().into_tensor_arg(),
        values.clone().into_tensor_arg(),
        burn::backend::cubecl::dtype_to_storage_type(dtype),
    );
    (keys, values)
}

#[cube(launch)]
fn append_kernel<F: Float, N: Size>(
    k: &Tensor<Vector<F, N>>,
    v: &Tensor<Vector<F, N>>,
    words: &Tensor<u32>,
    keys: &mut Tensor<Vector<F, N>>,
    values: &mut Tensor<Vector<F, N>>,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let width = k.shape(1) / size;
    let row = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    if row < k.shape(0) {
        let position = words[row * TOKEN_WORDS] as usize;
        let slot = slot_of(words, words[row * TOKEN_WORDS + 1] as usize, position);
        let of_keys = slot * (keys.stride(0) / size) + column;
        let of_values = slot * (values.stride(0) / size) + column;
        keys[of_keys] = k[row * (k.stride(0) / size) + column];
        values[of_values] = v[row * (v.stride(0) / size) + column];
    }
}

/// The row of a position in a cache, given the place of its sequence's blocks.
#[cube]
fn slot_of(words: &Tensor<u32>, blocks: usize, position: usize) -> usize {
    words[blocks + position / BLOCK_TOKENS] as usize * BLOCK_TOKENS + position % BLOCK_TOKENS
}

pub(super) fn paged_attention(
    q: CubeTensor,
    keys: CubeTensor,
    values: CubeTensor,
    shape: &AttentionShape,
    tables: &BlockTables,
) -> CubeTensor {
    let (q, keys, values) = (by_rows(q), by_rows(keys), by_rows(values));
    let out = empty(&q, q.shape(), q.dtype);
    let table = tables.rows(&shape.sequences, &q.client, &q.device);
    let group = shape.num_heads / shape.num_kv_heads;
    let heads = (1..=UNITS / LANES)
        .rev()
        .find(|heads| group.is_multiple_of(*heads));
    let heads = heads.unwrap_or(1);
    let mut size = vector_size(&[&q, &keys, &values, &out]);
    if !shape.head_dim.is_multiple_of(size) {
        size = 1;
    }
    let window = shape.window.unwrap_or(usize::MAX);
    let seen: usize = table.ends.iter().map(|&end| end.min(window)).sum();
    record_elements(keys.dtype, 2 * seen * shape.num_kv_heads * shape.head_dim);
    record(&[&q], &[&out]);
    let (client, dtype) = (q.client.clone(), q.dtype);
    paged_attention_kernel::launch(
        &client,
        cubes(table.rows * shape.num_heads / heads),
        cube_dim(LANES, heads),
        size,
        q.into_tensor_arg(),
        keys.into_tensor_arg(),
        values.into_tensor_arg(),
        table.words.into_tensor_arg(),
        out.clone().into_tensor_arg(),
        shape.scale() as f32,
        shape.softcap.unwrap_or(0.0),
        // Positions are below 2^31, so that a window of that size hides nothing.
        window.min(u32::MAX as usize / 2) as u32,
        shape.num_heads,
        group,
        heads,
        shape.head_dim / size,
        shape.softcap.is_some(),
        burn::backend::cubecl::dtype_to_storage_type(dtype),
    );
    out
}

/// Online softmax over tiles of [`LANES`] keys.
#[cube(launch)]
fn paged_attention_kernel<F: Float, N: Size>(
    q: &Tensor<Vector<F, N>>,
    keys: &Tensor<Vector<F, N>>,
    values: &Tensor<Vector<F, N>>,
    words: &Tensor<u32>,
    out: &mut Tensor<Vector<F, N>>,
    scale: f32,
    softcap: f32,
    window: u32,
    #[comptime] all_heads: usize,
    #[comptime] group: usize,
    #[comptime] heads: usize,
    #[comptime] head_vectors: usize,
    #[comptime] is_capped: bool,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let lane = UNIT_POS_X as usize;
    let cubes = comptime!(all_heads / heads);
    let row = CUBE_POS / cubes;
    if row < q.shape(0) {
        let head = CUBE_POS % cubes * heads + UNIT_POS_Y as usize;
        let position = words[row * TOKEN_WORDS] as usize;
        let blocks = words[row * TOKEN_WORDS + 1] as usize;
        let end = position + 1;
        let mut begin = 0usize;
        if end > window as usize {
            begin = end - window as usize;
        }
        let q_row = row * (q.stride(0) / size) + head * head_vectors;
        let key_stride = keys.stride(0) / size;
        let value_stride = values.stride(0) / size;
        let of_head = head / group * head_vectors;

        // Features of a unit: every LANES-th vector of the head.
        let own = comptime!(head_vectors.div_ceil(LANES));
        let mut sums = Array::<Vector<f32, N>>::new(own);
        #[unroll]
        for step in 0..own {
            sums[step] = Vector::new(0.0);
        }
        let mut largest = LOWEST.runtime();
        let mut total = 0.0f32;
        let mut weights = Shared::<[f32]>::new_slice(comptime!(UNITS));
        let first = begin / LANES;
        for tile in first..end.div_ceil(LANES) {
            let key = tile * LANES + lane;
            let mut score = LOWEST.runtime();
            if key >= begin && key < end {
                let key_row = slot_of(words, blocks, key) * key_stride + of_head;
                let mut products = Vector::<f32, N>::new(0.0);
                for column in 0..head_vectors {
                    products += Vector::<f32, N>::cast_from(q[q_row + column])
                        * Vector::cast_from(keys[key_row + column]);
                }
                score = element_sum::<N>(products) * scale;
                if comptime!(is_capped) {
                    score = softcap * (score / softcap).tanh();
                }
            }
            let highest = row_max(score, LANES).max(largest);
            let weight = f32::exp(score - highest);
            let kept = f32::exp(largest - highest);
            total = total * kept + row_sum(weight, LANES);
            largest = highest;
            weights[UNIT_POS as usize] = weight;
            sync_cube();
            #[unroll]
            for step in 0..own {
                let column = step * LANES + lane;
                if column < head_vectors {
                    let mut sum = sums[step] * Vector::new(kept);
                    for other in 0..LANES {
                        let key = tile * LANES + other;
                        if key >= begin && key < end {
                            let value_row = slot_of(words, blocks, key) * value_stride + of_head;
                            let weight = weights[UNIT_POS_Y as usize * LANES + other];
                            sum += Vector::<f32, N>::cast_from(values[value_row + column])
                                * Vector::new(weight);
                        }
                    }
                    sums[step] = sum;
                }
            }
            // The next tile writes its weights to the same places.
            sync_cube();
        }
        let out_row = row * (out.stride(0) / size) + head * head_vectors;
        #[unroll]
        for step in 0..own {
            let column = step * LANES + lane;
            if column < head_vectors {
                out[out_row + column] = Vector::cast_from(sums[step] / Vector::new(total));
            }
        }
    }
}
