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

pub(super) use cross_entropy::RowLogProbs;

use super::{
    Activation, AttentionShape, BlockTables, DecoderOps, Rotation, Sequences, padded_attention,
    paged, reference,
};

/// The tensor as contiguous `float32` rows; `None` for other types, which the reference computes.
fn contiguous(tensor: &FlexTensor) -> Option<FlexTensor> {
    (tensor.dtype() == DType::F32).then(|| tensor.to_contiguous())
}

fn values_of(tensor: &FlexTensor) -> &[f32] {
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
                let out = elementwise::rms_norm(values_of(&x), values_of(&weight), epsilon);
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
                let (x_values, gradient) = (values_of(&x), values_of(&gradient));
                let dx =
                    elementwise::rms_norm_backward(x_values, values_of(&weight), gradient, epsilon);
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
                let out = elementwise::glu(values_of(&gate), values_of(&up), activation);
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
                    [values_of(&gate), values_of(&up), values_of(&gradient)];
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
                let (cos, sin) = (values_of(&cos), values_of(&sin));
                let turned = elementwise::rotate(values_of(&x), cos, sin, [width, half], rotation);
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
                let out = attention::forward(values_of(&q), values_of(&k), values_of(&v), &shape);
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
                let qkv = [values_of(&q), values_of(&k), values_of(&v)];
                let [dq, dk, dv] = attention::backward(qkv, values_of(&gradient), &shape);
                (
                    tensor(dq, q.shape()),
                    tensor(dk, k.shape()),
                    tensor(dv, v.shape()),
                )
            }
            _ => padded_attention::self_attention_backward::<Self>(q, k, v, gradient, &shape),
        }
    }

    fn append_kv(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        sequences: Sequences,
        tables: BlockTables,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let slots = tables.slots(&sequences);
        let append = |mut cache: FlexTensor, x: FlexTensor| {
            let Some(x) = contiguous(&x).filter(|_| cache.dtype() == DType::F32) else {
                return paged::append::<Self>(cache, x, &sequences, &tables);
            };
            if !cache.is_contiguous() {
                cache = cache.to_contiguous();
            }
            let width = cache.shape()[1];
            let out = cache.storage_mut::<f32>();
            for (row, &slot) in values_of(&x).chunks_exact(width).zip(&slots) {
                out[slot * width..][..width].copy_from_slice(row);
            }
            cache
        };
        (append(keys, k), append(values, v))
    }

    fn paged_attention(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        shape: AttentionShape,
        tables: BlockTables,
    ) -> FloatTensor<Self> {
        match (contiguous(&q), contiguous(&keys), contiguous(&values)) {
            (Some(q), Some(keys), Some(values)) => {
                let both = [values_of(&keys), values_of(&values)];
                let out = attention::paged(values_of(&q), both, &shape, &tables);
                tensor(out, q.shape())
            }
            _ => paged::attention::<Self>(q, keys, values, &shape, &tables),
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
                    cross_entropy::cross_entropy(values_of(&logits), &targets, values_of(&weights));
                let rows = Shape::new([losses.len()]);
                (tensor(losses, rows), tensor(gradient, logits.shape()))
            }
            _ => reference::cross_entropy::<Self>(logits, targets, weights),
        }
    }
}
