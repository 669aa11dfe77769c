//! Attention as batched matrix products over sequences side by side.
//!
//! The query heads that share a key and value head lie one after another in a batch, so that one
//! product serves all of them and the gradients of keys and values sum over them within it. Queries
//! attend in parts of 256, each to the keys up to its end: five eighths of all scores at 1,024 tokens
//! where half is seen. Scores exist for one part at a time, and are computed again in backward.
//!
//! Forward takes 3 launches and 3 a part, backward 4 and 7 a part, whatever the number of sequences and
//! heads; copies for a product, and a launch for each result that a product cannot write in place, come on
//! top. A bound on the scores takes a launch a part forward, and two and a product backward.

use std::ops::Range;

use batchlora_kernels::{
    is_software,
    launch::{by_rows, empty, zeros},
    matmul, matmul_onto,
};
use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{kernel::slice, tensor::CubeTensor};

use super::{
    chunks::{Chunk, Limits, Part, chunks},
    places::{Block, Heads},
    softcap::{softcap, softcap_backward},
    softmax::{Places, softmax, softmax_backward},
    tables::SequenceTable,
};
use crate::AttentionShape;

/// A part's scores are at most 512 MiB in `bfloat16`: those of 32,768 tokens and 32 heads. A software
/// device, which serves tests, gets few, so that moderate sequences are split.
fn limits(tensor: &CubeTensor) -> Limits {
    if is_software(&tensor.device) {
        return Limits {
            queries: 64,
            scores: 1 << 20,
        };
    }
    Limits {
        queries: 256,
        scores: 1 << 28,
    }
}

fn transposed(mut tensor: CubeTensor) -> CubeTensor {
    tensor.meta.swap(1, 2);
    tensor
}

/// State that the parts of one attention share.
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

    fn block(&self, chunk: &Chunk) -> Block<'_> {
        Block {
            table: &self.table,
            first_sequence: chunk.sequences.start,
            sequences: chunk.sequences.len(),
            places: chunk.places,
            of_part: chunk.queries,
        }
    }

    /// The lines of a batch that have a part's queries.
    fn lines(&self, part: &Part) -> Range<usize> {
        let group = self.query_heads().group;
        group * part.queries.start..group * part.queries.end
    }

    /// `[batch, group · queries, head_dim] × [batch, keys, head_dim] → [batch, group · queries, keys]`.
    ///
    /// Scores are `bfloat16` where q is, as in transformers' eager attention; `float16` has too small
    /// a range for them.
    fn probabilities(&self, q: CubeTensor, k: CubeTensor, part: &Part) -> CubeTensor {
        let mut scores = self.scores(q, k);
        let scale = self.shape.scale() as f32;
        if let Some(cap) = self.shape.softcap {
            scores = softcap(scores, scale, cap);
        }
        softmax(scores, self.places(part), scale, self.dtype)
    }

    fn scores(&self, q: CubeTensor, k: CubeTensor) -> CubeTensor {
        matmul(q, transposed(k), scores_type(self.dtype))
    }

    fn places(&self, part: &Part) -> Places {
        Places {
            first_query: part.queries.start,
            queries: part.queries.len(),
            first_key: part.keys.start,
            window: self.shape.window,
        }
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
    for chunk in chunks(&attention.table.lengths, shape, limits(&q)) {
        let block = attention.block(&chunk);
        let queries = block.gather(&q, query_heads);
        let [keys, values] = block.gather_both([&k, &v], key_heads);
        let mut attended = Whole::side_by_side(block.shape(query_heads), q.dtype);
        for part in &chunk.parts {
            let lines = attention.lines(part);
            let p = attention.probabilities(
                lines_of(&queries, lines.clone()),
                lines_of(&keys, part.keys.clone()),
                part,
            );
            attended.put(lines.start, p, lines_of(&values, part.keys.clone()));
        }
        block.scatter(attended.finish(), query_heads, &out);
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
    for chunk in chunks(&attention.table.lengths, shape, limits(&q)) {
        let block = attention.block(&chunk);
        let [queries, gradients] = block.gather_both([&q, &gradient], query_heads);
        let [keys, values] = block.gather_both([&k, &v], key_heads);
        let mut chunk_dq = Whole::side_by_side(block.shape(query_heads), q.dtype);
        let [mut chunk_dk, mut chunk_dv] =
            [(); 2].map(|()| Whole::sums(block.shape(key_heads), &chunk, q.dtype));
        // Without a window the last part sees all keys.
        for part in chunk.parts.iter().rev() {
            let (lines, seen) = (attention.lines(part), part.keys.clone());
            let part_q = lines_of(&queries, lines.clone());
            let part_k = lines_of(&keys, seen.clone());
            let part_v = lines_of(&values, seen.clone());
            let part_gradient = lines_of(&gradients, lines.clone());

            let p = attention.probabilities(part_q.clone(), part_k.clone(), part);
            chunk_dv.put(seen.start, transposed(p.clone()), part_gradient.clone());
            let dp = matmul(part_gradient, transposed(part_v), scores_type(q.dtype));
            let scale = shape.scale() as f32;
            let mut ds = softmax_backward(p, dp, attention.places(part), scale);
            if let Some(cap) = shape.softcap {
                let scores = attention.scores(part_q.clone(), part_k.clone());
                ds = softcap_backward(ds, scores, scale, cap);
            }
            chunk_dq.put(lines.start, ds.clone(), part_k);
            chunk_dk.put(seen.start, transposed(ds), part_q);
        }
        block.scatter(chunk_dq.finish(), query_heads, &dq);
        block.scatter_both(
            [chunk_dk.finish(), chunk_dv.finish()],
            key_heads,
            [&dk, &dv],
        );
    }
    (dq, dk, dv)
}

/// Lines of every matrix of a batch `[batch, lines, head_dim]`.
fn lines_of(whole: &CubeTensor, lines: Range<usize>) -> CubeTensor {
    let [batch, all, width] = whole.shape().dims();
    if lines.len() == all {
        return whole.clone();
    }
    slice(whole.clone(), &[0..batch, lines, 0..width])
}

fn scores_type(dtype: DType) -> DType {
    match dtype {
        DType::BF16 => DType::BF16,
        _ => DType::F32,
    }
}

/// A batch of matrices from the products of a chunk's parts.
struct Whole {
    shape: [usize; 3],
    dtype: DType,
    /// Products are added where they overlap; otherwise they are side by side.
    sums: bool,
    made: Option<CubeTensor>,
}

/// Sums of several parts are kept in `float32`.
fn sum_dtype(parts: usize, dtype: DType) -> DType {
    if parts == 1 { dtype } else { DType::F32 }
}

impl Whole {
    fn side_by_side(shape: [usize; 3], dtype: DType) -> Self {
        Self {
            shape,
            dtype,
            sums: false,
            made: None,
        }
    }

    fn sums(shape: [usize; 3], chunk: &Chunk, dtype: DType) -> Self {
        Self {
            shape,
            dtype: sum_dtype(chunk.parts.len(), dtype),
            sums: true,
            made: None,
        }
    }

    /// `lhs · rhs` as lines `first..` of each matrix.
    fn put(&mut self, first: usize, lhs: CubeTensor, rhs: CubeTensor) {
        let Self {
            shape,
            dtype,
            sums,
            made,
        } = self;
        if made.is_none() && lhs.shape()[1] == shape[1] {
            *made = Some(matmul(lhs, rhs, *dtype));
            return;
        }
        let whole = made.get_or_insert_with(|| match sums {
            true => zeros(&lhs, *shape, *dtype),
            false => empty(&lhs, *shape, *dtype),
        });
        matmul_onto(lhs, rhs, whole, first, *sums);
    }

    fn finish(self) -> CubeTensor {
        self.made.expect("a chunk has a part")
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::sum_dtype;

    #[test]
    fn parts_are_not_added_up_in_half_precision() {
        let dtypes = [1, 2, 8].map(|parts| sum_dtype(parts, DType::BF16));
        assert_eq!(dtypes, [DType::BF16, DType::F32, DType::F32]);
    }
}
