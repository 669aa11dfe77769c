//! The operations on the CPU: one pass over memory each, rows in parallel, no state shared between rows, so that a
//! row's numbers do not depend on the batch.

mod attention;
mod cross_entropy;
mod elementwise;
mod numerics;

use burn::{
    backend::{
        Flex, TensorMetadata,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, Shape, TensorData},
};
use burn_flex::FlexTensor;

use super::{Activation, AttentionShape, DecoderOps, Rotation, padded_attention, reference};

/// The tensor as contiguous `float32` rows; `None` for other types, which the reference computes.
fn contiguous(tensor: &FlexTensor) -> Option<FlexTensor> {
    (tensor.dtype() == DType::F32).then(|| tensor.to_contiguous())
}

fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().unwrap_or(&[])
}

fn tensor(data: Vec<f32>, shape: Shape) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(data, shape))
}

impl DecoderOps for Flex {
    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        match (contiguous(&x), contiguous(&weight)) {
            (Some(x), Some(weight)) => {
                let out = elementwise::rms_norm(values(&x), values(&weight), epsilon);
                tensor(out, x.shape())
            }
            _ => reference::rms_norm::<Self>(x, weight, epsilon),
        }
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        match (contiguous(&x), contiguous(&weight), contiguous(&gradient)) {
            (Some(x), Some(weight), Some(gradient)) => {
                let (x_values, gradient) = (values(&x), values(&gradient));
                let dx =
                    elementwise::rms_norm_backward(x_values, values(&weight), gradient, epsilon);
                tensor(dx, x.shape())
            }
            _ => reference::rms_norm_backward::<Self>(x, weight, gradient, epsilon),
        }
    }

    fn glu(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        match (contiguous(&gate), contiguous(&up)) {
            (Some(gate), Some(up)) => {
                let out = elementwise::glu(values(&gate), values(&up), activation);
                tensor(out, gate.shape())
            }
            _ => reference::glu::<Self>(gate, up, activation),
        }
    }

    fn glu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        activation: Activation,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        match (contiguous(&gate), contiguous(&up), contiguous(&gradient)) {
            (Some(gate), Some(up), Some(gradient)) => {
                let [gate_values, up_values, gradient] =
                    [values(&gate), values(&up), values(&gradient)];
                let (d_gate, d_up) =
                    elementwise::glu_backward(gate_values, up_values, gradient, activation);
                (tensor(d_gate, gate.shape()), tensor(d_up, up.shape()))
            }
            _ => reference::glu_backward::<Self>(gate, up, gradient, activation),
        }
    }

    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rotation: Rotation,
    ) -> FloatTensor<Self> {
        match (contiguous(&x), contiguous(&cos), contiguous(&sin)) {
            (Some(x), Some(cos), Some(sin)) => {
                let [width, half] = [x.shape()[1], cos.shape()[1]];
                let (cos, sin) = (values(&cos), values(&sin));
                let turned = elementwise::rotate(values(&x), cos, sin, [width, half], rotation);
                tensor(turned, x.shape())
            }
            _ => reference::rotate::<Self>(x, cos, sin, rotation),
        }
    }

    fn self_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self> {
        match (contiguous(&q), contiguous(&k), contiguous(&v)) {
            (Some(q), Some(k), Some(v)) => {
                let out = attention::forward(values(&q), values(&k), values(&v), &shape);
                tensor(out, q.shape())
            }
            _ => padded_attention::self_attention::<Self>(q, k, v, &shape),
        }
    }

    fn self_attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        match (
            contiguous(&q),
            contiguous(&k),
            contiguous(&v),
            contiguous(&gradient),
        ) {
            (Some(q), Some(k), Some(v), Some(gradient)) => {
                let qkv = [values(&q), values(&k), values(&v)];
                let [dq, dk, dv] = attention::backward(qkv, values(&gradient), &shape);
                (
                    tensor(dq, q.shape()),
                    tensor(dk, k.shape()),
                    tensor(dv, v.shape()),
                )
            }
            _ => padded_attention::self_attention_backward::<Self>(q, k, v, gradient, &shape),
        }
    }

    fn cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        weights: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        match (contiguous(&logits), contiguous(&weights)) {
            (Some(logits), Some(weights)) => {
                let targets: Vec<usize> = targets
                    .into_data()
                    .iter::<i64>()
                    .map(|target| target as usize)
                    .collect();
                let (losses, gradient) =
                    cross_entropy::cross_entropy(values(&logits), &targets, values(&weights));
                let rows = Shape::new([losses.len()]);
                (tensor(losses, rows), tensor(gradient, logits.shape()))
            }
            _ => reference::cross_entropy::<Self>(logits, targets, weights),
        }
    }
}
