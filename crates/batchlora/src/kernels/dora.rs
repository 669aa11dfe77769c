//! DoRA: columns scaled by adapter, the gradient of their scales, the parts of an input that dropout keeps and drops, and
//! the norms of adapted weights. Every wide operand is read once and every result written once.
//!
//! The gradient of the scales is summed over blocks of [`ROW_BLOCK`] rows of one segment, and these in row order: it has
//! the same bits in any batch.
//!
//! [`ROW_BLOCK`]: super::tables::ROW_BLOCK

use batchlora_kernels::{
    launch::{
        by_rows, cube_dim, cubes, empty, record, record_mask, table, vector_size, writable, zeros,
    },
    matmul, matmul_onto,
};
use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    dropout::{Dropout, Mask, read_wide},
    tables::{BLOCK_WORDS, DoraTables, MAGNITUDE_WORDS, NO_ADAPTER, SEGMENT_WORDS},
};
use crate::{Routing, ops::ScaledRanks};

/// Units of a cube over vectors of a matrix.
const UNITS: usize = 256;
/// Units side by side along the columns of a sum.
const LANES: usize = 32;
/// Rows of units.
const ROWS: usize = 8;
/// Rows that a unit loads at once.
const LOADS: usize = 4;

/// Cubes of [`UNITS`] for every vector of a matrix.
fn over(tensor: &CubeTensor, size: usize) -> CubeCount {
    cubes((tensor.shape().num_elements() / size).div_ceil(UNITS))
}

pub(super) fn scale_columns(wide: CubeTensor, scales: CubeTensor, routing: &Routing) -> CubeTensor {
    let Some(tables) = routing.tables(&wide.client, &wide.device).dora else {
        return wide;
    };
    let (wide, scales) = (by_rows(wide), by_rows(scales));
    let out = empty(&wide, wide.shape(), wide.dtype);
    let size = vector_size(&[&wide, &scales, &out]);
    record(&[&wide, &scales], &[&out]);
    let (client, dtype) = (wide.client.clone(), wide.dtype);
    scale_columns_kernel::launch(
        &client,
        over(&wide, size),
        cube_dim(UNITS, 1),
        size,
        wide.into_tensor_arg(),
        scales.into_tensor_arg(),
        tables.magnitude_rows.into_buffer_arg(),
        out.clone().into_tensor_arg(),
        dtype_to_storage_type(dtype),
    );
    out
}

#[cube(launch)]
fn scale_columns_kernel<F: Float, N: Size>(
    wide: &Tensor<Vector<F, N>>,
    scales: &Tensor<Vector<f32, N>>,
    magnitude_rows: &[u32],
    out: &mut Tensor<Vector<F, N>>,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let width = wide.shape(1) / size;
    let row = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    if row < wide.shape(0) {
        let mut value = read_wide::<F, N>(wide, row, column);
        let magnitude = magnitude_rows[row];
        if magnitude != NO_ADAPTER {
            value *= scales[magnitude as usize * (scales.stride(0) / size) + column];
        }
        let at = row * (out.stride(0) / size) + column;
        out[at] = Vector::cast_from(value);
    }
}

pub(super) fn scale_grad(wide: CubeTensor, gradient: CubeTensor, routing: &Routing) -> CubeTensor {
    let (wide, gradient) = (by_rows(wide), by_rows(gradient));
    let width = wide.shape()[1];
    let tables = routing.tables(&wide.client, &wide.device);
    let out = empty(&wide, [routing.magnitudes(), width], DType::F32);
    let partial = empty(&wide, [tables.block_count.max(1), width], DType::F32);
    let Some(DoraTables {
        magnitude_rows,
        magnitudes,
        ..
    }) = tables.dora
    else {
        return zeros(&wide, out.shape(), DType::F32);
    };
    let size = vector_size(&[&wide, &gradient, &partial, &out]);
    let cubes_along = (width / size).div_ceil(LANES) as u32;
    record(&[&wide, &gradient], &[&partial]);
    let (client, dtype) = (wide.client.clone(), wide.dtype);
    scale_partial_sums_kernel::launch(
        &client,
        CubeCount::Static(tables.block_count as u32, cubes_along, 1),
        cube_dim(LANES, ROWS),
        size,
        wide.into_tensor_arg(),
        gradient.into_tensor_arg(),
        tables.blocks.into_buffer_arg(),
        magnitude_rows.into_buffer_arg(),
        partial.clone().into_tensor_arg(),
        dtype_to_storage_type(dtype),
    );
    record(&[&partial], &[&out]);
    scale_sum_kernel::launch(
        &client,
        CubeCount::Static(routing.magnitudes() as u32, cubes_along, 1),
        cube_dim(LANES, 1),
        size,
        partial.into_tensor_arg(),
        magnitudes.into_buffer_arg(),
        out.clone().into_tensor_arg(),
    );
    out
}

#[cube(launch)]
fn scale_partial_sums_kernel<F: Float, N: Size>(
    wide: &Tensor<Vector<F, N>>,
    gradient: &Tensor<Vector<F, N>>,
    blocks: &[u32],
    magnitude_rows: &[u32],
    partial: &mut Tensor<Vector<f32, N>>,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let width = wide.shape(1) / size;
    let block = CUBE_POS_X as usize * BLOCK_WORDS;
    let first_row = blocks[block + 1] as usize;
    let rows = blocks[block + 2] as usize;
    let lane = UNIT_POS_X as usize;
    let row_lane = UNIT_POS_Y as usize;
    let column = CUBE_POS_Y as usize * LANES + lane;

    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(comptime!(ROWS * LANES));
    let mut sum = Vector::<f32, N>::new(0.0);
    if column < width && magnitude_rows[first_row] != NO_ADAPTER {
        for step in 0..rows.div_ceil(comptime!(ROWS * LOADS)) {
            let step_row = step * comptime!(ROWS * LOADS) + row_lane;
            let mut products = Array::<Vector<f32, N>>::new(LOADS);
            #[unroll]
            for load in 0..LOADS {
                // All loads of a step are issued at once: the last row stands in for those beyond it.
                let mut row = step_row + comptime!(load * ROWS);
                if row >= rows {
                    row = rows - 1;
                }
                products[load] = read_wide::<F, N>(wide, first_row + row, column)
                    * read_wide::<F, N>(gradient, first_row + row, column);
            }
            #[unroll]
            for load in 0..LOADS {
                if step_row + comptime!(load * ROWS) < rows {
                    sum += products[load];
                }
            }
        }
    }
    sums[row_lane * LANES + lane] = sum;
    sync_cube();
    if row_lane == 0 && column < width {
        let mut total = Vector::<f32, N>::new(0.0);
        #[unroll]
        for other in 0..ROWS {
            total += sums[other * LANES + lane];
        }
        let at = CUBE_POS_X as usize * (partial.stride(0) / size) + column;
        partial[at] = total;
    }
}

#[cube(launch)]
fn scale_sum_kernel<N: Size>(
    partial: &Tensor<Vector<f32, N>>,
    magnitudes: &[u32],
    out: &mut Tensor<Vector<f32, N>>,
) {
    let size = N::value();
    let column = CUBE_POS_Y as usize * LANES + UNIT_POS_X as usize;
    let magnitude = CUBE_POS_X as usize;
    let words = magnitude * MAGNITUDE_WORDS;
    let first = magnitudes[words] as usize;
    if column < out.shape(1) / size {
        let mut sum = Vector::<f32, N>::new(0.0);
        for block in 0..magnitudes[words + 1] as usize {
            sum += partial[(first + block) * (partial.stride(0) / size) + column];
        }
        let factor = f32::reinterpret(magnitudes[words + 2]);
        let at = magnitude * (out.stride(0) / size) + column;
        out[at] = sum * Vector::new(factor);
    }
}

pub(super) fn split_dropped(x: CubeTensor, routing: &Routing) -> (CubeTensor, CubeTensor) {
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

pub(super) fn join_dropped(
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
pub(super) fn matmul_add(
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

/// Two products and a launch, for all adapters: `‖w‖² + s·Σ b ∘ (2·A w + s·A Aᵀ b)`.
pub(super) fn norms(
    squares: CubeTensor,
    products: CubeTensor,
    a: CubeTensor,
    b: CubeTensor,
    adapters: &[ScaledRanks],
) -> CubeTensor {
    let mut transposed = a.clone();
    transposed.meta.swap(0, 1);
    let among = matmul(a, transposed, DType::F32);
    let [squares, products, among, b] = [squares, products, among, b].map(by_rows);
    let width = b.shape()[1];
    let out = empty(&b, [adapters.len(), width], DType::F32);
    let words: Vec<u32> = adapters
        .iter()
        .flat_map(|ScaledRanks { ranks, scale }| {
            let scale = (*scale as f32).to_bits();
            [ranks.start as u32, ranks.len() as u32, scale]
        })
        .collect();
    let words = table(&b.client, &b.device, &words);
    let size = vector_size(&[&squares, &products, &b, &out]);
    record(&[&squares, &products, &among, &b], &[&out]);
    let client = b.client.clone();
    norms_kernel::launch(
        &client,
        CubeCount::Static(
            adapters.len() as u32,
            (width / size).div_ceil(LANES) as u32,
            1,
        ),
        cube_dim(LANES, 1),
        size,
        squares.into_tensor_arg(),
        products.into_tensor_arg(),
        among.into_tensor_arg(),
        b.into_tensor_arg(),
        words.into_buffer_arg(),
        out.clone().into_tensor_arg(),
    );
    out
}

#[cube(launch)]
fn norms_kernel<N: Size>(
    squares: &Tensor<Vector<f32, N>>,
    products: &Tensor<Vector<f32, N>>,
    among: &Tensor<f32>,
    b: &Tensor<Vector<f32, N>>,
    adapters: &[u32],
    out: &mut Tensor<Vector<f32, N>>,
) {
    let size = N::value();
    let column = CUBE_POS_Y as usize * LANES + UNIT_POS_X as usize;
    let adapter = CUBE_POS_X as usize;
    let start = adapters[adapter * 3] as usize;
    let rank = adapters[adapter * 3 + 1] as usize;
    let scale = Vector::<f32, N>::new(f32::reinterpret(adapters[adapter * 3 + 2]));
    if column < out.shape(1) / size {
        let stride = b.stride(0) / size;
        let mut sum = Vector::<f32, N>::new(0.0);
        for j in start..start + rank {
            let mut inner = Vector::<f32, N>::new(0.0);
            for k in start..start + rank {
                let factor = among[j * among.stride(0) + k];
                inner += Vector::<f32, N>::new(factor) * b[k * stride + column];
            }
            let product = products[j * (products.stride(0) / size) + column];
            sum += b[j * stride + column] * (product + product + scale * inner);
        }
        let square = squares[column] + scale * sum;
        let mut norm = Vector::<f32, N>::new(0.0);
        #[unroll]
        for index in 0..size {
            // A column of zeros would have a scale of 0 / 0, and rounding may make a square negative.
            let mut element = square.extract(index);
            if element < f32::MIN_POSITIVE {
                element = f32::MIN_POSITIVE.runtime();
            }
            norm.insert(index, f32::sqrt(element));
        }
        let at = adapter * (out.stride(0) / size) + column;
        out[at] = norm;
    }
}
