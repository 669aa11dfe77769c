use burn::{
    backend::{
        Backend, TensorMetadata, get_device_settings,
        tensor::{BoolTensor, Device, FloatTensor, IntTensor},
    },
    tensor::{DType, FloatDType, IndexingUpdateOp, Shape, Slice, TensorData},
};

use super::{AttentionShape, Rotation};

fn to_f32<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    to_dtype::<B>(x, DType::F32)
}

fn to_dtype<B: Backend>(x: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if x.dtype() == dtype {
        x
    } else {
        B::float_cast(x, FloatDType::from(dtype))
    }
}

/// `1 / rms(x)`, `[rows, 1]`.
fn inverse_rms<B: Backend>(x: FloatTensor<B>, epsilon: f64) -> FloatTensor<B> {
    let mean = B::float_mean_dim(B::float_mul(x.clone(), x), 1);
    B::float_recip(B::float_sqrt(B::float_add_scalar(mean, epsilon.into())))
}

fn row<B: Backend>(weight: FloatTensor<B>) -> FloatTensor<B> {
    let width = weight.shape()[0];
    B::float_reshape(weight, Shape::new([1, width]))
}

pub(super) fn rms_norm<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    epsilon: f64,
) -> FloatTensor<B> {
    let dtype = x.dtype();
    let x = to_f32::<B>(x);
    let normal = B::float_mul(x.clone(), inverse_rms::<B>(x, epsilon));
    B::float_mul(to_dtype::<B>(normal, dtype), row::<B>(weight))
}

/// With y = w·x/r: dx = (g·w - x/r² · mean(g·w·x)) / r.
pub(super) fn rms_norm_backward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    epsilon: f64,
) -> FloatTensor<B> {
    let dtype = x.dtype();
    let x = to_f32::<B>(x);
    let gradient = B::float_mul(to_f32::<B>(gradient), row::<B>(to_f32::<B>(weight)));
    let inverse = inverse_rms::<B>(x.clone(), epsilon);
    let normal = B::float_mul(x, inverse.clone());
    let along = B::float_mean_dim(B::float_mul(gradient.clone(), normal.clone()), 1);
    let dx = B::float_sub(gradient, B::float_mul(normal, along));
    to_dtype::<B>(B::float_mul(dx, inverse), dtype)
}

/// `1 / (1 + exp(-x))`.
fn sigmoid<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    B::float_recip(B::float_add_scalar(
        B::float_exp(B::float_neg(x)),
        1.0.into(),
    ))
}

pub(super) fn swiglu<B: Backend>(gate: FloatTensor<B>, up: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = gate.dtype();
    let gate = to_f32::<B>(gate);
    let silu = B::float_mul(gate.clone(), sigmoid::<B>(gate));
    B::float_mul(to_dtype::<B>(silu, dtype), up)
}

/// silu'(z) = σ(z)·(1 + z·(1 - σ(z))).
pub(super) fn swiglu_backward<B: Backend>(
    gate: FloatTensor<B>,
    up: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dtype = gate.dtype();
    let (gate, up, gradient) = (to_f32::<B>(gate), to_f32::<B>(up), to_f32::<B>(gradient));
    let sigmoid = sigmoid::<B>(gate.clone());
    let silu = B::float_mul(gate.clone(), sigmoid.clone());
    let complement = B::float_add_scalar(B::float_neg(sigmoid.clone()), 1.0.into());
    let slope = B::float_add_scalar(B::float_mul(gate, complement), 1.0.into());
    let d_gate = B::float_mul(
        B::float_mul(gradient.clone(), up),
        B::float_mul(sigmoid, slope),
    );
    let d_up = B::float_mul(gradient, silu);
    (to_dtype::<B>(d_gate, dtype), to_dtype::<B>(d_up, dtype))
}

pub(super) fn rotate<B: Backend>(
    x: FloatTensor<B>,
    cos: FloatTensor<B>,
    sin: FloatTensor<B>,
    rotation: Rotation,
) -> FloatTensor<B> {
    let (shape, dtype) = (x.shape(), x.dtype());
    let (rows, half) = (shape[0], cos.shape()[1]);
    let heads = shape[1] / (2 * half);
    let x = B::float_reshape(x, Shape::new([rows, heads, 2, half]));
    let part = |index: usize| {
        let place = [
            Slice::full(),
            Slice::full(),
            Slice::from(index..index + 1),
            Slice::full(),
        ];
        B::float_slice(x.clone(), &place)
    };
    let table = |table: FloatTensor<B>| {
        to_dtype::<B>(
            B::float_reshape(table, Shape::new([rows, 1, 1, half])),
            dtype,
        )
    };
    let (cos, sin) = (table(cos), table(sin));
    let sin = if rotation == Rotation::Back {
        B::float_neg(sin)
    } else {
        sin
    };
    let (first, second) = (part(0), part(1));
    let turned = vec![
        B::float_sub(
            B::float_mul(first.clone(), cos.clone()),
            B::float_mul(second.clone(), sin.clone()),
        ),
        B::float_add(B::float_mul(second, cos), B::float_mul(first, sin)),
    ];
    B::float_reshape(B::float_cat(turned, 2), shape)
}

/// Sequences side by side, `[sequences, longest, …]`, and back.
struct Padded<'a> {
    shape: &'a AttentionShape,
}

impl Padded<'_> {
    fn longest(&self) -> usize {
        self.shape.sequences.longest()
    }

    /// The row of every padded place. Places beyond a sequence's end hold some other token of the
    /// batch: they are finite, no real token sees them, and they are left out on the way back.
    fn rows_of_places(&self) -> Vec<i32> {
        let longest = self.longest();
        let last = self.shape.sequences.rows() - 1;
        let sequences = self.shape.sequences.iter();
        sequences
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
        let AttentionShape {
            sequences,
            num_kv_heads,
            head_dim,
            ..
        } = self.shape;
        let places = indices::<B>(self.rows_of_places(), &x.device());
        let x = B::float_select(to_f32::<B>(x), 0, places);
        let group = heads / num_kv_heads;
        let dims = [
            sequences.len(),
            self.longest(),
            *num_kv_heads,
            group,
            *head_dim,
        ];
        B::float_permute(B::float_reshape(x, Shape::new(dims)), &[0, 2, 3, 1, 4])
    }

    /// The way back, without the padding.
    fn join<B: Backend>(&self, x: FloatTensor<B>, heads: usize, dtype: DType) -> FloatTensor<B> {
        let AttentionShape {
            sequences,
            head_dim,
            ..
        } = self.shape;
        let x = B::float_permute(x, &[0, 3, 1, 2, 4]);
        let flat = Shape::new([sequences.len() * self.longest(), heads * head_dim]);
        let rows = indices::<B>(self.places_of_rows(), &x.device());
        to_dtype::<B>(B::float_select(B::float_reshape(x, flat), 0, rows), dtype)
    }

    /// Softmax of the scaled scores, `[sequences, kv_heads, group, longest, longest]`.
    fn probabilities<B: Backend>(&self, q: FloatTensor<B>, k: FloatTensor<B>) -> FloatTensor<B> {
        let scores = B::float_matmul(q, B::float_swap_dims(k, 3, 4));
        let scores = B::float_mul_scalar(scores, self.shape.scale().into());
        let hidden = self.hidden::<B>(&scores.device());
        let hidden = B::bool_expand(hidden, scores.shape());
        let scores = B::float_mask_fill(scores, hidden, f32::NEG_INFINITY.into());
        let scores = B::float_sub(scores.clone(), B::float_max_dim(scores, 4));
        let exponentials = B::float_exp(scores);
        B::float_div(exponentials.clone(), B::float_sum_dim(exponentials, 4))
    }

    /// Which keys a query does not see, `[1, 1, 1, longest, longest]`.
    fn hidden<B: Backend>(&self, device: &Device<B>) -> BoolTensor<B> {
        let longest = self.longest();
        let hidden: Vec<bool> = (0..longest)
            .flat_map(|query| {
                let seen = self.shape.first_key(query)..=query;
                (0..longest).map(move |key| !seen.contains(&key))
            })
            .collect();
        let dtype = get_device_settings::<B>(device).bool_dtype;
        let data = TensorData::new(hidden, [1, 1, 1, longest, longest]).convert_dtype(dtype.into());
        B::bool_from_data(data, device)
    }
}

fn indices<B: Backend>(indices: Vec<i32>, device: &Device<B>) -> IntTensor<B> {
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
    let out = B::float_matmul(padded.probabilities::<B>(q, k), v);
    padded.join::<B>(out, shape.num_heads, dtype)
}

/// With P the probabilities: dV = Pᵀ dO; dP = dO Vᵀ; dS = P ∘ (dP - rowsum(P ∘ dP)).
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

    let p = padded.probabilities::<B>(q.clone(), k.clone());
    let dv = B::float_sum_dim(B::float_matmul(transpose(p.clone()), gradient.clone()), 2);
    let dp = B::float_matmul(gradient, transpose(v));
    let along = B::float_sum_dim(B::float_mul(p.clone(), dp.clone()), 4);
    let ds = B::float_mul(p, B::float_sub(dp, along));
    let ds = B::float_mul_scalar(ds, shape.scale().into());
    let dq = B::float_matmul(ds.clone(), k);
    let dk = B::float_sum_dim(B::float_matmul(transpose(ds), q), 2);
    (
        padded.join::<B>(dq, shape.num_heads, dtype),
        padded.join::<B>(dk, shape.num_kv_heads, dtype),
        padded.join::<B>(dv, shape.num_kv_heads, dtype),
    )
}

impl Padded<'_> {
    /// Zero where a place is beyond its sequence's end.
    fn without_padding<B: Backend>(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        let (count, longest) = (self.shape.sequences.len(), self.longest());
        let sequences = self.shape.sequences.iter();
        let real: Vec<f32> = sequences
            .flat_map(|rows| (0..longest).map(move |at| f32::from(u8::from(at < rows.len()))))
            .collect();
        let real = TensorData::new(real, [count, 1, 1, longest, 1]);
        let real = B::float_from_data(real, &x.device());
        B::float_mul(x, real)
    }
}

pub(super) fn cross_entropy<B: Backend>(
    logits: FloatTensor<B>,
    targets: IntTensor<B>,
    weights: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dtype = logits.dtype();
    let rows = logits.shape()[0];
    let logits = to_f32::<B>(logits);
    let column = Shape::new([rows, 1]);
    let targets = B::int_reshape(targets, column.clone());
    let weights = B::float_reshape(weights, column);
    let shifted = B::float_sub(logits.clone(), B::float_max_dim(logits, 1));
    let exponentials = B::float_exp(shifted.clone());
    let sums = B::float_sum_dim(exponentials.clone(), 1);
    let losses = B::float_sub(
        B::float_log(sums.clone()),
        B::float_gather(1, shifted, targets.clone()),
    );
    let gradient = B::float_mul(B::float_div(exponentials, sums), weights.clone());
    let gradient = B::float_scatter(
        1,
        gradient,
        targets,
        B::float_neg(weights),
        IndexingUpdateOp::Add,
    );
    (
        B::float_reshape(losses, Shape::new([rows])),
        to_dtype::<B>(gradient, dtype),
    )
}

/// The tests of the operations see the backend's own; these tie the reference, which other backends
/// run, to them.
#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::*;
    use crate::{Sequences, ops::DecoderOps};

    const SHAPE: [usize; 2] = [31, 24];

    /// Uniform in ±2.
    fn random<const D: usize>(shape: [usize; D], seed: u32) -> FloatTensor<Flex> {
        let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as f32 / 2f32.powi(30) - 2.0
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
        burn_flex::FlexTensor::from_data(TensorData::new(values, shape))
    }

    fn assert_close<const N: usize>(
        what: &str,
        found: [FloatTensor<Flex>; N],
        expected: [FloatTensor<Flex>; N],
    ) {
        for (found, expected) in found.into_iter().zip(expected) {
            assert_eq!(found.shape(), expected.shape(), "{what}");
            let [found, expected] = [found, expected].map(|tensor| tensor.to_contiguous());
            let (found, expected) = (
                found.as_slice::<f32>().unwrap(),
                expected.as_slice().unwrap(),
            );
            let largest = expected
                .iter()
                .fold(0f32, |max, value: &f32| max.max(value.abs()));
            for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
                let difference: f32 = found - expected;
                let close = difference.abs() <= 1e-5 * largest;
                assert!(close, "{what}[{index}]: {found} {expected}");
            }
        }
    }

    #[test]
    fn rms_norm_agrees_with_the_backend() {
        let (x, gradient, weight) = (random(SHAPE, 1), random(SHAPE, 2), random([SHAPE[1]], 3));
        assert_close(
            "value",
            [rms_norm::<Flex>(x.clone(), weight.clone(), 0.1)],
            [Flex::rms_norm(x.clone(), weight.clone(), 0.1)],
        );
        assert_close(
            "gradient",
            [rms_norm_backward::<Flex>(
                x.clone(),
                weight.clone(),
                gradient.clone(),
                0.1,
            )],
            [Flex::rms_norm_backward(x, weight, gradient, 0.1)],
        );
    }

    #[test]
    fn swiglu_agrees_with_the_backend() {
        let [gate, up, gradient] = [1, 2, 3].map(|seed| random(SHAPE, seed));
        assert_close(
            "value",
            [swiglu::<Flex>(gate.clone(), up.clone())],
            [Flex::swiglu(gate.clone(), up.clone())],
        );
        assert_close(
            "gradients",
            swiglu_backward::<Flex>(gate.clone(), up.clone(), gradient.clone()).into(),
            Flex::swiglu_backward(gate, up, gradient).into(),
        );
    }

    #[test]
    fn rotate_agrees_with_the_backend() {
        let (x, table) = (random(SHAPE, 1), |seed| random([SHAPE[0], 4], seed));
        for sense in [Rotation::Forward, Rotation::Back] {
            assert_close(
                &format!("{sense:?}"),
                [rotate::<Flex>(x.clone(), table(2), table(3), sense)],
                [Flex::rotate(x.clone(), table(2), table(3), sense)],
            );
        }
    }

    #[test]
    fn attention_agrees_with_the_backend() {
        for window in [None, Some(1), Some(4)] {
            let shape = AttentionShape {
                sequences: Sequences::from_lengths([9, 1, 0, 21]),
                num_heads: 4,
                num_kv_heads: 2,
                head_dim: 6,
                window,
            };
            let (q, gradient) = (random(SHAPE, 1), random(SHAPE, 2));
            let (k, v) = (random([SHAPE[0], 12], 3), random([SHAPE[0], 12], 4));
            assert_close(
                &format!("value, {window:?}"),
                [self_attention::<Flex>(
                    q.clone(),
                    k.clone(),
                    v.clone(),
                    &shape,
                )],
                [Flex::self_attention(
                    q.clone(),
                    k.clone(),
                    v.clone(),
                    shape.clone(),
                )],
            );
            let expected = self_attention_backward::<Flex>(
                q.clone(),
                k.clone(),
                v.clone(),
                gradient.clone(),
                &shape,
            );
            let found = Flex::self_attention_backward(q, k, v, gradient, shape);
            assert_close(
                &format!("gradients, {window:?}"),
                expected.into(),
                found.into(),
            );
        }
    }

    #[test]
    fn cross_entropy_agrees_with_the_backend() {
        let (logits, weights) = (random(SHAPE, 1), random([SHAPE[0]], 2));
        let targets = || {
            let ids = (0..SHAPE[0])
                .map(|row| (row * 7 % SHAPE[1]) as i32)
                .collect();
            indices::<Flex>(ids, &burn_flex::FlexDevice)
        };
        assert_close(
            "losses and gradient",
            cross_entropy::<Flex>(logits.clone(), targets(), weights.clone()).into(),
            Flex::cross_entropy(logits, targets(), weights).into(),
        );
    }
}
