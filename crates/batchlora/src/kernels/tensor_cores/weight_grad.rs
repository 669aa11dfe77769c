//! The partial sums of `dA = dSᵀ D(X)` and `dB = s · Sᵀ dH`; see the kernel of the same name without
//! tensor cores.
//!
//! A cube takes one block of rows, [`COLUMNS`] columns and up to 64 ranks, a plane a quarter of these
//! columns, and walks along the rows by [`ROW_STEP`].

use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::{
    cmma::{Matrix, MatrixIdent, MatrixLayout},
    prelude::*,
};

use super::{EDGE, PADDING, PLANE, PLANES, UNITS};
use crate::{
    Routing,
    kernels::{
        dropout::read_wide,
        launch::{cube_dim, record, vector_size},
        shrink::MAX_CHUNKS,
        tables::{BLOCK_WORDS, RANK, SEGMENT_WORDS, Tables},
    },
    ops::Side,
};

/// Columns of a cube.
const COLUMNS: usize = 128;
/// Fragments beside each other in a plane's part of the columns.
const COLUMN_FRAGMENTS: usize = COLUMNS / PLANES / EDGE;
/// Rows of the batch in shared memory.
const ROW_STEP: usize = 32;
/// Fragments below each other in them.
const ROW_FRAGMENTS: usize = ROW_STEP / EDGE;
/// Elements from a row to the next of a tile in shared memory.
const PITCH: usize = COLUMNS + PADDING;

/// Operands by rows; the batch has blocks.
pub(in crate::kernels) fn partial_sums(
    wide: CubeTensor,
    narrow: CubeTensor,
    partial: &CubeTensor,
    tables: &Tables,
    routing: &Routing,
    side: Side,
) {
    let size = vector_size(&[&wide, partial]);
    let chunks = routing.rank_max().div_ceil(EDGE);
    let cubes = CubeCount::Static(
        wide.shape()[1].div_ceil(COLUMNS) as u32,
        tables.block_count as u32,
        chunks.div_ceil(MAX_CHUNKS) as u32,
    );
    record(&[&wide, &narrow, partial]);
    let (client, dtype) = (wide.client.clone(), wide.dtype);
    partial_sums_kernel::launch(
        &client,
        cubes,
        cube_dim(UNITS, 1),
        size,
        wide.into_tensor_arg(),
        narrow.into_tensor_arg(),
        tables.blocks.clone().into_buffer_arg(),
        tables.segments.clone().into_buffer_arg(),
        tables.dropout_rows.clone().into_buffer_arg(),
        partial.clone().into_tensor_arg(),
        routing.module(),
        chunks.next_power_of_two().min(MAX_CHUNKS),
        side == Side::Input && routing.has_dropout(),
        burn::backend::cubecl::dtype_to_storage_type(dtype),
    );
}

#[cube(launch)]
fn partial_sums_kernel<F: Float, N: Size>(
    wide: &Tensor<Vector<F, N>>,
    narrow: &Tensor<f32>,
    blocks: &[u32],
    segments: &[u32],
    dropout_rows: &[u32],
    partial: &mut Tensor<Vector<f32, N>>,
    module: u32,
    #[comptime] chunks: usize,
    #[comptime] masked: bool,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let vectors = comptime!(COLUMNS / size);
    let pitch = comptime!(PITCH / size);
    let ranks = comptime!(chunks * EDGE);
    let narrow_pitch = comptime!(chunks * EDGE + PADDING);
    let block = CUBE_POS_Y as usize * BLOCK_WORDS;
    let segment = blocks[block] as usize * SEGMENT_WORDS;
    let first_row = blocks[block + 1] as usize;
    let rows = blocks[block + 2] as usize;
    let first_partial = blocks[block + 3] as usize;
    let rank = segments[segment + RANK] as usize;
    let first_rank = CUBE_POS_Z as usize * (MAX_CHUNKS * EDGE);

    let unit = UNIT_POS as usize;
    let from = unit / PLANE * comptime!(COLUMN_FRAGMENTS * EDGE / size);
    let first_column = CUBE_POS_X as usize * vectors;
    let width = wide.shape(1) / size;
    let partial_stride = partial.stride(0) / size;

    let mut x = Shared::<[Vector<F, N>]>::new_slice(comptime!(ROW_STEP * (PITCH / size)));
    let mut s = Shared::<[F]>::new_slice(comptime!(ROW_STEP * (chunks * EDGE + PADDING)));
    let mut products = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..comptime!(chunks * COLUMN_FRAGMENTS) {
        products.push(Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            EDGE,
            EDGE,
            EDGE,
            MatrixLayout::Undefined,
            0.0,
        ));
    }

    if first_rank < rank {
        for step in 0..rows.div_ceil(ROW_STEP) {
            let step_row = step * ROW_STEP;
            for load in 0..comptime!(ROW_STEP * vectors / UNITS) {
                let at = load * UNITS + unit;
                let row = step_row + at / vectors;
                let column = first_column + at % vectors;
                let mut value = Vector::<f32, N>::new(0.0);
                if row < rows && column < width {
                    value = read_wide::<F, N>(
                        wide,
                        (first_row + row, column),
                        segments,
                        segment,
                        dropout_rows,
                        module,
                        masked,
                    );
                }
                x[at / vectors * pitch + at % vectors] = Vector::cast_from(value);
            }
            for load in 0..comptime!(ROW_STEP * ranks / UNITS) {
                let at = load * UNITS + unit;
                let row = step_row + at / ranks;
                let lane = first_rank + at % ranks;
                let mut value = 0.0f32;
                if row < rows && lane < rank {
                    value = narrow[(first_row + row) * narrow.stride(0) + lane];
                }
                s[at / ranks * narrow_pitch + at % ranks] = F::cast_from(value);
            }
            sync_cube();
            let (x_end, s_end) = (x.len(), s.len());
            #[unroll]
            for part in 0..ROW_FRAGMENTS {
                #[unroll]
                for beside in 0..COLUMN_FRAGMENTS {
                    let at = part * EDGE * pitch + from + beside * comptime!(EDGE / size);
                    let right = Matrix::<Vector<F, N>>::from_slice(
                        MatrixIdent::B,
                        EDGE,
                        EDGE,
                        EDGE,
                        MatrixLayout::RowMajor,
                        &x[at..x_end],
                        comptime!(PITCH as u32),
                    );
                    #[unroll]
                    for chunk in 0..chunks {
                        if first_rank + chunk * EDGE < rank {
                            let at = part * EDGE * narrow_pitch + chunk * EDGE;
                            let left = Matrix::<F>::from_slice(
                                MatrixIdent::A,
                                EDGE,
                                EDGE,
                                EDGE,
                                MatrixLayout::ColMajor,
                                &s[at..s_end],
                                comptime!((chunks * EDGE + PADDING) as u32),
                            );
                            let product = &products[comptime!(chunk * COLUMN_FRAGMENTS + beside)];
                            cmma::execute(&left, &right, product, product);
                        }
                    }
                }
            }
            sync_cube();
        }

        let mut sums = Shared::<[Vector<f32, N>]>::new_slice(comptime!(EDGE * (PITCH / size)));
        let end = sums.len();
        #[unroll]
        for chunk in 0..chunks {
            let chunk_rank = first_rank + chunk * EDGE;
            if chunk_rank < rank {
                #[unroll]
                for beside in 0..COLUMN_FRAGMENTS {
                    let at = from + beside * comptime!(EDGE / size);
                    cmma::store(
                        &mut sums[at..end],
                        &products[comptime!(chunk * COLUMN_FRAGMENTS + beside)],
                        comptime!(PITCH as u32),
                        MatrixLayout::RowMajor,
                    );
                }
                sync_cube();
                for store in 0..comptime!(EDGE * vectors / UNITS) {
                    let at = store * UNITS + unit;
                    let lane = chunk_rank + at / vectors;
                    let column = first_column + at % vectors;
                    if lane < rank && column < width {
                        let row = (first_partial + lane) * partial_stride;
                        partial[row + column] = sums[at / vectors * pitch + at % vectors];
                    }
                }
                sync_cube();
            }
        }
    }
}
