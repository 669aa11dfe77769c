//! Attention in plain tensor operations: sequences side by side in a rectangle.

use burn::{
    backend::{
        Backend, TensorMetadata, get_device_settings,
        tensor::{BoolTensor, Device, FloatTensor, IntTensor},
    },
    tensor::{DType, Shape, TensorData},
};

use super::{
    AttentionShape,
    reference::{to_dtype, to_f32},
};

/// Sequences side by side, `[sequences, longest, …]`, and back.
struct Padded<'a> {
    shape: &'a AttentionShape,
}

impl Padded<'_> {
    fn longest(&self) -> usize {
        self.shape.sequences.longest()
    }

    /// The row of every padded place. Places beyond a sequence's end hold another token of the batch: they are
    /// finite, no real token sees them, and the inverse skips them.
    fn rows_of_places(&self) -> Vec<i32> {
        let longest = self.longest();
        let last = self.shape.sequences.rows() - 1;
        self.shape
            .sequences
            .iter()
            .flat_map(|rows| (0..longest).map(move |at| (rows.start + at).min(last) as i32))
            .collect()
    }

    /// The padded place of every row.
    fn places_of_rows(&self) -> Vec<i32> {
        let longest = self.longest();
        let sequences = self.shape.sequences.iter().enumerate();
        sequences
            .flat_map(|(index, rows)| (0..rows.len()).map(move |at| (index * longest + at) as i32))
            .collect()
    }

    /// `[rows, heads · head_dim] → [sequences, kv_heads, heads / kv_heads, longest, head_dim]`.
    fn split<B: Backend>(&self, x: FloatTensor<B>, heads: usize) -> FloatTensor<B> {
        let (kv_heads, head_dim) = (self.shape.num_kv_heads, self.shape.head_dim);
        let places = indices::<B>(self.rows_of_places(), &x.device());
        let x = B::float_select(to_f32::<B>(x), 0, places);
        let (count, longest) = (self.shape.sequences.len(), self.longest());
        let dims = [count, longest, kv_heads, heads / kv_heads, head_dim];
        B::float_permute(B::float_reshape(x, Shape::new(dims)), &[0, 2, 3, 1, 4])
    }

    /// The inverse, without the padding.
    fn join<B: Backend>(&self, x: FloatTensor<B>, heads: usize, dtype: DType) -> FloatTensor<B> {
        let x = B::float_permute(x, &[0, 3, 1, 2, 4]);
        let places = self.shape.sequences.len() * self.longest();
        let flat = Shape::new([places, heads * self.shape.head_dim]);
        let rows = indices::<B>(self.places_of_rows(), &x.device());
        to_dtype::<B>(B::float_select(B::float_reshape(x, flat), 0, rows), dtype)
    }
}

/// Scaled scores, `[…, queries, keys]`, and where they are bounded the tangent `tanh(score / softcap)`.
fn scores<B: Backend>(
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    shape: &AttentionShape,
) -> (FloatTensor<B>, Option<FloatTensor<B>>) {
    let scores = B::float_matmul(q, B::float_swap_dims(k, 3, 4));
    let scores = B::float_mul_scalar(scores, shape.scale().into());
    let Some(cap) = shape.softcap else {
        return (scores, None);
    };
    let tangent = B::float_tanh(B::float_div_scalar(scores, cap.into()));
    let bounded = B::float_mul_scalar(tangent.clone(), cap.into());
    (bounded, Some(tangent))
}

/// Softmax over the keys that a query sees, `[…, queries, keys]`: the queries are the last of the
/// keys' positions.
fn causal_softmax<B: Backend>(scores: FloatTensor<B>, shape: &AttentionShape) -> FloatTensor<B> {
    let [.., queries, keys] = scores.shape().dims::<5>();
    let hidden = hidden::<B>(shape, queries, keys, &scores.device());
    let hidden = B::bool_expand(hidden, scores.shape());
    let scores = B::float_mask_fill(scores, hidden, f32::NEG_INFINITY.into());
    let scores = B::float_sub(scores.clone(), B::float_max_dim(scores, 4));
    let exponentials = B::float_exp(scores);
    B::float_div(exponentials.clone(), B::float_sum_dim(exponentials, 4))
}

/// True for keys that a query does not see, `[1, 1, 1, queries, keys]`.
fn hidden<B: Backend>(
    shape: &AttentionShape,
    queries: usize,
    keys: usize,
    device: &Device<B>,
) -> BoolTensor<B> {
    let hidden: Vec<bool> = (keys - queries..keys)
        .flat_map(|query| {
            let seen = shape.first_key(query)..=query;
            (0..keys).map(move |key| !seen.contains(&key))
        })
        .collect();
    let dtype = get_device_settings::<B>(device).bool_dtype;
    let data = TensorData::new(hidden, [1, 1, 1, queries, keys]).convert_dtype(dtype.into());
    B::bool_from_data(data, device)
}

pub(super) fn indices<B: Backend>(indices: Vec<i32>, device: &Device<B>) -> IntTensor<B> {
    let count = indices.len();
    let dtype = get_device_settings::<B>(device).int_dtype;
    let data = TensorData::new(indices, [count]).convert_dtype(dtype.into());
    B::int_from_data(data, device)
}

pub(super) fn self_attention<B: Backend>(
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    shape: &AttentionShape,
) -> FloatTensor<B> {
    let (padded, dtype) = (Padded { shape }, q.dtype());
    let q = padded.split::<B>(q, shape.num_heads);
    let k = padded.split::<B>(k, shape.num_kv_heads);
    let v = padded.split::<B>(v, shape.num_kv_heads);
    let (scores, _) = scores::<B>(q, k, shape);
    let out = B::float_matmul(causal_softmax::<B>(scores, shape), v);
    padded.join::<B>(out, shape.num_heads, dtype)
}

/// With P the probabilities: dV = Pᵀ dO; dP = dO Vᵀ; dS = P ∘ (dP - rowsum(P ∘ dP)), where scores are
/// bounded times 1 - tanh².
pub(super) fn self_attention_backward<B: Backend>(
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    gradient: FloatTensor<B>,
    shape: &AttentionShape,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let (padded, dtype) = (Padded { shape }, q.dtype());
    let q = padded.split::<B>(q, shape.num_heads);
    let k = padded.split::<B>(k, shape.num_kv_heads);
    let v = padded.split::<B>(v, shape.num_kv_heads);
    let gradient = padded.split::<B>(gradient, shape.num_heads);
    let gradient = padded.without_padding::<B>(gradient);
    let transpose = |x: FloatTensor<B>| B::float_swap_dims(x, 3, 4);

    let (scores, tangent) = scores::<B>(q.clone(), k.clone(), shape);
    let p = causal_softmax::<B>(scores, shape);
    let dv = B::float_sum_dim(B::float_matmul(transpose(p.clone()), gradient.clone()), 2);
    let dp = B::float_matmul(gradient, transpose(v));
    let along = B::float_sum_dim(B::float_mul(p.clone(), dp.clone()), 4);
    let mut ds = B::float_mul(p, B::float_sub(dp, along));
    if let Some(tangent) = tangent {
        let slope = B::float_neg(B::float_mul(tangent.clone(), tangent));
        ds = B::float_mul(ds, B::float_add_scalar(slope, 1.0.into()));
    }
    let ds = B::float_mul_scalar(ds, shape.scale().into());
    let dq = B::float_matmul(ds.clone(), k);
    let dk = B::float_sum_dim(B::float_matmul(transpose(ds), q), 2);
    (
        padded.join::<B>(dq, shape.num_heads, dtype),
        padded.join::<B>(dk, shape.num_kv_heads, dtype),
        padded.join::<B>(dv, shape.num_kv_heads, dtype),
    )
}

/// Attention of the last tokens of one sequence: q `[tokens, heads · head_dim]`, k and v
/// `[positions, kv_heads · head_dim]`, output as q.
pub(super) fn last_queries<B: Backend>(
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    shape: &AttentionShape,
) -> FloatTensor<B> {
    let (flat, dtype) = (q.shape(), q.dtype());
    let (kv_heads, width) = (shape.num_kv_heads, shape.head_dim);
    let split = |x: FloatTensor<B>| {
        let ([positions, all], x) = (x.shape().dims(), to_f32::<B>(x));
        let dims = [1, positions, kv_heads, all / width / kv_heads, width];
        B::float_permute(B::float_reshape(x, Shape::new(dims)), &[0, 2, 3, 1, 4])
    };
    let (scores, _) = scores::<B>(split(q), split(k), shape);
    let out = B::float_matmul(causal_softmax::<B>(scores, shape), split(v));
    let out = B::float_permute(out, &[0, 3, 1, 2, 4]);
    to_dtype::<B>(B::float_reshape(out, flat), dtype)
}

impl Padded<'_> {
    /// Zero where a place is beyond its sequence's end.
    fn without_padding<B: Backend>(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        let (count, longest) = (self.shape.sequences.len(), self.longest());
        let real = self.shape.sequences.iter();
        let real = real.flat_map(|rows| (0..longest).map(move |at| at < rows.len()));
        let real: Vec<f32> = real.map(|real| f32::from(u8::from(real))).collect();
        let real = TensorData::new(real, [count, 1, 1, longest, 1]);
        let real = B::float_from_data(real, &x.device());
        B::float_mul(x, real)
    }
}
