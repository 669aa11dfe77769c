//! Attention as batched matrix products over sequences side by side.
//!
//! The query heads that share a key and value head lie one after another in a batch, so that one
//! product serves all of them and the gradients of keys and values sum over them within it. Scores
//! exist for one part at a time, at most [`score_limit`] of them, and are computed again in
//! backward. A part takes 7 launches forward and 14 backward, whatever the number of sequences and
//! heads in it (besides the copies that a product may need).

use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::tensor::CubeTensor;

use batchlora::launch::{by_rows, empty, is_software, matmul};

use super::{
    chunks::{Chunk, Part, chunks},
    places::{Block, Heads, add_to_sums, zero_sums},
    softmax::{Places, softmax, softmax_backward},
    tables::SequenceTable,
};
use crate::AttentionShape;

/// Scores held at a time: 256 MiB of them; on a software adapter, which is there for tests, so few
/// that moderate sequences are split.
fn score_limit(tensor: &CubeTensor) -> usize {
    if is_software(&tensor.device) {
        return 1 << 16;
    }
    1 << 26
}

fn transposed(mut tensor: CubeTensor) -> CubeTensor {
    tensor.meta.swap(1, 2);
    tensor
}

/// One attention: what its parts share.
struct Attention<'a> {
    shape: &'a AttentionShape,
    table: SequenceTable,
    dtype: DType,
}

impl<'a> Attention<'a> {
    fn new(q: &CubeTensor, shape: &'a AttentionShape) -> Self {
        Self {
            shape,
            table: shape.sequences.table(&q.client, &q.device),
            dtype: q.dtype,
        }
    }

    fn query_heads(&self) -> Heads {
        Heads {
            of_keys: self.shape.num_kv_heads,
            group: self.shape.num_heads / self.shape.num_kv_heads,
            head_dim: self.shape.head_dim,
        }
    }

    fn key_heads(&self) -> Heads {
        Heads {
            group: 1,
            ..self.query_heads()
        }
    }

    fn block(&self, chunk: &Chunk, positions: &std::ops::Range<usize>) -> Block<'_> {
        Block {
            table: &self.table,
            first_sequence: chunk.sequences.start,
            sequences: chunk.sequences.len(),
            first_position: positions.start,
            places: positions.len(),
        }
    }

    /// `[batch, group · queries, head_dim] × [batch, keys, head_dim] → [batch, group · queries, keys]`.
    fn probabilities(&self, q: CubeTensor, k: CubeTensor, part: &Part) -> CubeTensor {
        let scores = matmul(q, transposed(k), DType::F32);
        let places = Places {
            first_query: part.queries.start,
            queries: part.queries.len(),
            first_key: part.keys.start,
            window: self.shape.window,
        };
        softmax(scores, places, self.shape.scale() as f32, self.dtype)
    }
}

pub(super) fn self_attention(
    q: CubeTensor,
    k: CubeTensor,
    v: CubeTensor,
    shape: &AttentionShape,
) -> CubeTensor {
    let [q, k, v] = [q, k, v].map(by_rows);
    let attention = Attention::new(&q, shape);
    let (query_heads, key_heads) = (attention.query_heads(), attention.key_heads());
    let out = empty(&q, q.shape(), q.dtype);
    for chunk in chunks(&attention.table.lengths, shape, score_limit(&q)) {
        for part in &chunk.parts {
            let queries = attention.block(&chunk, &part.queries);
            let keys = attention.block(&chunk, &part.keys);
            let p = attention.probabilities(
                queries.gather(&q, query_heads),
                keys.gather(&k, key_heads),
                part,
            );
            let attended = matmul(p, keys.gather(&v, key_heads), q.dtype);
            queries.scatter(attended, shape.num_kv_heads, &out);
        }
    }
    out
}

/// With P the probabilities: dV = Pᵀ dO; dP = dO Vᵀ; dS = P ∘ (dP - rowsum(P ∘ dP)); dQ = dS K;
/// dK = dSᵀ Q.
pub(super) fn self_attention_backward(
    q: CubeTensor,
    k: CubeTensor,
    v: CubeTensor,
    gradient: CubeTensor,
    shape: &AttentionShape,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [q, k, v, gradient] = [q, k, v, gradient].map(by_rows);
    let attention = Attention::new(&q, shape);
    let (query_heads, key_heads) = (attention.query_heads(), attention.key_heads());
    let dq = empty(&q, q.shape(), q.dtype);
    let dk = empty(&k, k.shape(), k.dtype);
    let dv = empty(&v, v.shape(), v.dtype);
    for chunk in chunks(&attention.table.lengths, shape, score_limit(&q)) {
        let whole = attention.block(&chunk, &(0..chunk.places));
        let sums = (chunk.parts.len() > 1).then(|| {
            let batch = chunk.sequences.len() * shape.num_kv_heads;
            [(); 2].map(|()| zero_sums(&q, [batch, chunk.places, shape.head_dim]))
        });
        let dtype = if sums.is_some() { DType::F32 } else { q.dtype };
        for part in &chunk.parts {
            let queries = attention.block(&chunk, &part.queries);
            let keys = attention.block(&chunk, &part.keys);
            let part_q = queries.gather(&q, query_heads);
            let part_k = keys.gather(&k, key_heads);
            let part_v = keys.gather(&v, key_heads);
            let part_gradient = queries.gather(&gradient, query_heads);

            let p = attention.probabilities(part_q.clone(), part_k.clone(), part);
            let part_dv = matmul(transposed(p.clone()), part_gradient.clone(), dtype);
            let dp = matmul(part_gradient, transposed(part_v), DType::F32);
            let ds = softmax_backward(p, dp, shape.scale() as f32);
            let part_dq = matmul(ds.clone(), part_k, q.dtype);
            queries.scatter(part_dq, shape.num_kv_heads, &dq);
            let part_dk = matmul(transposed(ds), part_q, dtype);
            if let Some([sum_dk, sum_dv]) = &sums {
                add_to_sums(sum_dk, part_dk, part.keys.start);
                add_to_sums(sum_dv, part_dv, part.keys.start);
            } else {
                whole.scatter(part_dk, shape.num_kv_heads, &dk);
                whole.scatter(part_dv, shape.num_kv_heads, &dv);
            }
        }
        if let Some([sum_dk, sum_dv]) = sums {
            whole.scatter(sum_dk, shape.num_kv_heads, &dk);
            whole.scatter(sum_dv, shape.num_kv_heads, &dv);
        }
    }
    (dq, dk, dv)
}

/// Queries of sequences that advance together over the keys and values in their cache.
pub(super) fn cached_attention(
    q: CubeTensor,
    k: CubeTensor,
    v: CubeTensor,
    shape: &AttentionShape,
) -> CubeTensor {
    let [q, k, v] = [by_rows(q), by_rows(k), by_rows(v)];
    let attention = Attention::new(&q, shape);
    let out = empty(&q, q.shape(), q.dtype);
    let tokens = shape.sequences.longest();
    let total = k.shape()[1];
    // Sequences of one length are in the table in batch order, as they are in the cache.
    let queries = Block {
        table: &attention.table,
        first_sequence: 0,
        sequences: attention.table.lengths.len(),
        first_position: 0,
        places: tokens,
    };
    let seen = Part {
        queries: total - tokens..total,
        keys: 0..total,
    };
    let gathered = queries.gather(&q, attention.query_heads());
    let p = attention.probabilities(gathered, k, &seen);
    let dtype = q.dtype;
    queries.scatter(matmul(p, v, dtype), shape.num_kv_heads, &out);
    out
}
