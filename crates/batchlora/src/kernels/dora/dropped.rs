//! The parts of an input that dropout keeps and drops, and their products with the weight.

use batchlora_kernels::{
    launch::{by_rows, cube_dim, empty, record, record_mask, vector_size, writable, zeros},
    matmul_onto,
};
use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{UNITS, over};
use crate::{
    Routing,
    kernels::{
        dropout::{Dropout, Mask, read_wide},
        tables::{NO_ADAPTER, SEGMENT_WORDS},
    },
};

pub(in crate::kernels) fn split_dropped(
    x: CubeTensor,
    routing: &Routing,
) -> (CubeTensor, CubeTensor) {
    let x = by_rows(x);
    let tables = routing.tables(&x.client, &x.device);
    let [masked, rest] = [(); 2].map(|()| empty(&x, x.shape(), x.dtype));
    let Some(dora) = tables.dora else {
        let zeros = zeros(&x, x.shape(), x.dtype);
        return (x, zeros);
    };
    let size = vector_size(&[&x, &masked, &rest]);
    record(&[&x], &[&masked, &rest]);
    record_mask();
    let (client, dtype) = (x.client.clone(), x.dtype);
    split_dropped_kernel::launch(
        &client,
        over(&x, size),
        cube_dim(UNITS, 1),
        size,
        x.into_tensor_arg(),
        dora.dropped_rows.into_buffer_arg(),
        tables.segments.into_buffer_arg(),
        tables.dropout_rows.into_buffer_arg(),
        tables.unused.into_buffer_arg(),
        masked.clone().into_tensor_arg(),
        rest.clone().into_tensor_arg(),
        routing.module(),
        dtype_to_storage_type(dtype),
    );
    (masked, rest)
}

#[cube(launch)]
fn split_dropped_kernel<F: Float, N: Size>(
    x: &Tensor<Vector<F, N>>,
    dropped_rows: &[u32],
    segments: &[u32],
    dropout_rows: &[u32],
    kept: &[u32],
    masked: &mut Tensor<Vector<F, N>>,
    rest: &mut Tensor<Vector<F, N>>,
    module: u32,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let width = x.shape(1) / size;
    let row = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    if row < x.shape(0) {
        let value = read_wide::<F, N>(x, row, column);
        let mut through = value;
        let segment = dropped_rows[row];
        if segment != NO_ADAPTER {
            let segment = segment as usize * SEGMENT_WORDS;
            let dropout = Dropout::new(segments, segment, dropout_rows, kept, module, Mask::Drawn);
            let bits = dropout.bits::<N>(row, column, width);
            through = dropout.apply::<N>(value, bits);
        }
        let at = row * (masked.stride(0) / size) + column;
        masked[at] = Vector::cast_from(through);
        rest[at] = Vector::cast_from(value - through);
    }
}

pub(in crate::kernels) fn join_dropped(
    masked: CubeTensor,
    rest: CubeTensor,
    routing: &Routing,
    first: usize,
) -> CubeTensor {
    let tables = routing.tables(&masked.client, &masked.device);
    let Some(dora) = tables.dora else {
        return masked;
    };
    let (masked, rest) = (writable(masked), by_rows(rest));
    let size = vector_size(&[&masked, &rest]);
    record(&[&rest, &masked], &[&masked]);
    record_mask();
    let (client, dtype) = (masked.client.clone(), masked.dtype);
    join_dropped_kernel::launch(
        &client,
        over(&rest, size),
        cube_dim(UNITS, 1),
        size,
        rest.into_tensor_arg(),
        dora.dropped_rows.into_buffer_arg(),
        tables.segments.into_buffer_arg(),
        tables.dropout_rows.into_buffer_arg(),
        tables.unused.into_buffer_arg(),
        masked.clone().into_tensor_arg(),
        routing.module(),
        first as u32,
        dtype_to_storage_type(dtype),
    );
    masked
}

#[cube(launch)]
fn join_dropped_kernel<F: Float, N: Size>(
    rest: &Tensor<Vector<F, N>>,
    dropped_rows: &[u32],
    segments: &[u32],
    dropout_rows: &[u32],
    kept: &[u32],
    masked: &mut Tensor<Vector<F, N>>,
    module: u32,
    first: u32,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let width = rest.shape(1) / size;
    let of_rest = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    if of_rest < rest.shape(0) {
        let row = first as usize + of_rest;
        let segment = dropped_rows[row] as usize * SEGMENT_WORDS;
        let dropout = Dropout::new(segments, segment, dropout_rows, kept, module, Mask::Drawn);
        let bits = dropout.bits::<N>(row, column, width);
        let at = row * (masked.stride(0) / size) + column;
        let through = dropout.apply::<N>(Vector::cast_from(masked[at]), bits);
        let beside = read_wide::<F, N>(rest, of_rest, column);
        let dropped = dropout.apply::<N>(beside, bits);
        masked[at] = Vector::cast_from(through + (beside - dropped));
    }
}

/// Adds `x · weight` to the rows of `out` from `first` on.
pub(in crate::kernels) fn matmul_add(
    out: CubeTensor,
    x: CubeTensor,
    weight: CubeTensor,
    first: usize,
) -> CubeTensor {
    let out = writable(out);
    matmul_onto(batch(x), batch(weight), &batch(out.clone()), first, true);
    out
}

/// A matrix as a batch of one.
fn batch(mut matrix: CubeTensor) -> CubeTensor {
    let stride = matrix.shape()[0] * matrix.meta.strides()[0];
    matrix.meta.insert(0, 1, stride);
    matrix
}
