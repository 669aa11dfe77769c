//! The operations in plain tensor operations: the oracle of the others, and the implementation of backends
//! without one. Attention is in [`padded_attention`](super::padded_attention).

use burn::{
    backend::{
        Backend, TensorMetadata,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, FloatDType, IndexingUpdateOp, Shape, Slice},
};

use super::{
    Rotation,
    activation::{Activation, GELU_CUBE, GELU_SLOPE},
};

pub(super) fn to_f32<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    to_dtype::<B>(x, DType::F32)
}

pub(super) fn to_dtype<B: Backend>(x: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
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
    let normal = to_dtype::<B>(normal, weight.dtype());
    to_dtype::<B>(B::float_mul(normal, row::<B>(weight)), dtype)
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
    let exponential = B::float_exp(B::float_neg(x));
    B::float_recip(B::float_add_scalar(exponential, 1.0.into()))
}

/// The argument s(z) of the sigmoid in act(z) = z·σ(s(z)).
fn argument<B: Backend>(z: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
    match activation {
        Activation::Silu => z,
        Activation::GeluTanh => {
            let factor = gelu_factor::<B>(z.clone(), 1.0);
            B::float_mul(z, factor)
        }
    }
}

/// `GELU_SLOPE + times · GELU_CUBE z²`: s(z)/z for one, s'(z) for three times.
fn gelu_factor<B: Backend>(z: FloatTensor<B>, times: f32) -> FloatTensor<B> {
    let square = B::float_mul(z.clone(), z);
    let square = B::float_mul_scalar(square, (times * GELU_CUBE).into());
    B::float_add_scalar(square, GELU_SLOPE.into())
}

pub(super) fn glu<B: Backend>(
    gate: FloatTensor<B>,
    up: FloatTensor<B>,
    activation: Activation,
) -> FloatTensor<B> {
    let dtype = gate.dtype();
    let gate = to_f32::<B>(gate);
    let sigmoid = sigmoid::<B>(argument::<B>(gate.clone(), activation));
    let activated = B::float_mul(gate, sigmoid);
    B::float_mul(to_dtype::<B>(activated, dtype), up)
}

/// act'(z) = σ(s)·(1 + z·(1 - σ(s))·s').
pub(super) fn glu_backward<B: Backend>(
    gate: FloatTensor<B>,
    up: FloatTensor<B>,
    gradient: FloatTensor<B>,
    activation: Activation,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dtype = gate.dtype();
    let (gate, up, gradient) = (to_f32::<B>(gate), to_f32::<B>(up), to_f32::<B>(gradient));
    let sigmoid = sigmoid::<B>(argument::<B>(gate.clone(), activation));
    let activated = B::float_mul(gate.clone(), sigmoid.clone());
    let complement = B::float_add_scalar(B::float_neg(sigmoid.clone()), 1.0.into());
    let mut inner = B::float_mul(gate.clone(), complement);
    if activation == Activation::GeluTanh {
        inner = B::float_mul(inner, gelu_factor::<B>(gate, 3.0));
    }
    let slope = B::float_add_scalar(inner, 1.0.into());
    let of_up = B::float_mul(gradient.clone(), up);
    let d_gate = B::float_mul(of_up, B::float_mul(sigmoid, slope));
    let d_up = B::float_mul(gradient, activated);
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
        let (all, of_part) = (Slice::full(), Slice::from(index..index + 1));
        B::float_slice(x.clone(), &[all, all, of_part, all])
    };
    let table = |table: FloatTensor<B>| {
        let table = B::float_reshape(table, Shape::new([rows, 1, 1, half]));
        to_dtype::<B>(table, dtype)
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
    let of_targets = B::float_gather(1, shifted, targets.clone());
    let losses = B::float_sub(B::float_log(sums.clone()), of_targets);
    let gradient = B::float_mul(B::float_div(exponentials, sums), weights.clone());
    let (less, add) = (B::float_neg(weights), IndexingUpdateOp::Add);
    let gradient = B::float_scatter(1, gradient, targets, less, add);
    let losses = B::float_reshape(losses, Shape::new([rows]));
    (losses, to_dtype::<B>(gradient, dtype))
}

/// The tests of the operations run the backend's own; these compare the reference with them.
#[cfg(test)]
mod tests {
    use burn::{backend::Flex, tensor::TensorData};

    use super::*;
    use crate::{
        AttentionShape, Sequences,
        ops::{
            DecoderOps,
            padded_attention::{indices, self_attention, self_attention_backward},
        },
    };

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
    fn glu_agrees_with_the_backend() {
        for act in [Activation::Silu, Activation::GeluTanh] {
            let [gate, up, gradient] = [1, 2, 3].map(|seed| random(SHAPE, seed));
            assert_close(
                &format!("value, {act:?}"),
                [glu::<Flex>(gate.clone(), up.clone(), act)],
                [Flex::glu(gate.clone(), up.clone(), act)],
            );
            assert_close(
                &format!("gradients, {act:?}"),
                glu_backward::<Flex>(gate.clone(), up.clone(), gradient.clone(), act).into(),
                Flex::glu_backward(gate, up, gradient, act).into(),
            );
        }
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
        let forms = [
            (None, None),
            (Some(1), None),
            (Some(4), None),
            (Some(4), Some(0.5)),
        ];
        for (window, softcap) in forms {
            let shape = AttentionShape {
                sequences: Sequences::from_lengths([9, 1, 0, 21]),
                num_heads: 4,
                num_kv_heads: 2,
                head_dim: 6,
                window,
                score_scale: None,
                softcap,
            };
            let (q, gradient) = (random(SHAPE, 1), random(SHAPE, 2));
            let (k, v) = (random([SHAPE[0], 12], 3), random([SHAPE[0], 12], 4));
            assert_close(
                &format!("value, {window:?} {softcap:?}"),
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
                &format!("gradients, {window:?} {softcap:?}"),
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
