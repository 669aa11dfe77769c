//! The primitives in plain tensor operations: the oracle everywhere, and the implementation where
//! nothing faster exists.

use burn::{
    backend::{Backend, TensorMetadata, tensor::FloatTensor},
    tensor::{Shape, Slice, TensorData},
};

use super::Side;
use crate::{RoutedSegment, Routing};

fn rows<B: Backend>(tensor: &FloatTensor<B>, segment: &RoutedSegment) -> FloatTensor<B> {
    B::float_slice(
        tensor.clone(),
        &[Slice::from(segment.rows.clone()), Slice::full()],
    )
}

fn narrow_rows<B: Backend>(tensor: &FloatTensor<B>, segment: &RoutedSegment) -> FloatTensor<B> {
    let columns = Slice::from(0..segment.ranks.len());
    B::float_slice(
        tensor.clone(),
        &[Slice::from(segment.rows.clone()), columns],
    )
}

fn ranks<B: Backend>(weight: &FloatTensor<B>, segment: &RoutedSegment) -> FloatTensor<B> {
    B::float_slice(
        weight.clone(),
        &[Slice::from(segment.ranks.clone()), Slice::full()],
    )
}

fn zeros<B: Backend>(shape: [usize; 2], like: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_zeros(Shape::new(shape), &like.device(), like.dtype().into())
}

fn masked<B: Backend>(
    tensor: FloatTensor<B>,
    routing: &Routing,
    segment: &RoutedSegment,
    side: Side,
) -> FloatTensor<B> {
    match (side, segment.dropout) {
        (Side::Input, Some(dropout)) => {
            let shape = tensor.shape();
            let mask = dropout.mask(routing.dropout_rows(segment.rows.clone()), shape[1]);
            let mask = TensorData::new(mask, shape).convert_dtype(tensor.dtype());
            B::float_mul(tensor.clone(), B::float_from_data(mask, &tensor.device()))
        }
        _ => tensor,
    }
}

fn scaled<B: Backend>(
    tensor: FloatTensor<B>,
    segment: &RoutedSegment,
    side: Side,
) -> FloatTensor<B> {
    match side {
        Side::Input => tensor,
        Side::Output => B::float_mul_scalar(tensor, segment.scale.into()),
    }
}

pub(crate) fn shrink<B: Backend>(
    wide: FloatTensor<B>,
    weight: FloatTensor<B>,
    routing: &Routing,
    side: Side,
) -> FloatTensor<B> {
    let mut out = zeros::<B>([wide.shape()[0], routing.rank_max()], &wide);
    for segment in routing.iter() {
        let x = masked::<B>(rows::<B>(&wide, segment), routing, segment, side);
        let product = B::float_matmul(x, B::float_transpose(ranks::<B>(&weight, segment)));
        let place = [
            Slice::from(segment.rows.clone()),
            Slice::from(0..segment.ranks.len()),
        ];
        out = B::float_slice_assign(out, &place, scaled::<B>(product, segment, side));
    }
    out
}

pub(crate) fn expand_add<B: Backend>(
    wide: FloatTensor<B>,
    narrow: FloatTensor<B>,
    weight: FloatTensor<B>,
    routing: &Routing,
    side: Side,
) -> FloatTensor<B> {
    let mut out = wide;
    for segment in routing.iter() {
        let product = B::float_matmul(
            narrow_rows::<B>(&narrow, segment),
            ranks::<B>(&weight, segment),
        );
        let product = scaled::<B>(masked::<B>(product, routing, segment, side), segment, side);
        let sum = B::float_add(rows::<B>(&out, segment), product);
        let place = [Slice::from(segment.rows.clone()), Slice::full()];
        out = B::float_slice_assign(out, &place, sum);
    }
    out
}

pub(crate) fn weight_grad<B: Backend>(
    wide: FloatTensor<B>,
    narrow: FloatTensor<B>,
    routing: &Routing,
    side: Side,
) -> FloatTensor<B> {
    let mut out = zeros::<B>([routing.rank_sum(), wide.shape()[1]], &wide);
    for segment in routing.iter() {
        let x = masked::<B>(rows::<B>(&wide, segment), routing, segment, side);
        let product = B::float_matmul(B::float_transpose(narrow_rows::<B>(&narrow, segment)), x);
        // A slot may have several segments: its gradient is their sum.
        let sum = B::float_add(
            ranks::<B>(&out, segment),
            scaled::<B>(product, segment, side),
        );
        let place = [Slice::from(segment.ranks.clone()), Slice::full()];
        out = B::float_slice_assign(out, &place, sum);
    }
    out
}

pub(crate) fn scalar_root<B: Backend>(like: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_zeros(Shape::new([1]), &like.device(), like.dtype().into())
}
