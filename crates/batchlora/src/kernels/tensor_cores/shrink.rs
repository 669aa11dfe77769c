//! `S = D(X) Aᵀ` and `dS = s · dH Bᵀ`; see the kernel of the same name without tensor cores.
//!
//! A cube takes [`ROW_TILE`] rows of one segment and up to 64 of its ranks, and walks along the
//! width by [`WIDTH_TILE`]. A plane has a quarter of every tile, so that it holds the sums of all
//! rows and ranks over its part of the width; the four are added up at the end, plane after plane.

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
        tables::{RANK, RANK_START, ROW_TILE, SCALE, SEGMENT_WORDS, TILE_WORDS, Tables},
    },
    ops::Side,
};

/// Elements of the width in shared memory.
const WIDTH_TILE: usize = EDGE * PLANES;
/// Fragments below each other in a tile of rows.
const ROW_FRAGMENTS: usize = ROW_TILE / EDGE;

/// Operands by rows; the batch has tiles and ranks.
pub(in crate::kernels) fn shrink(
    wide: CubeTensor,
    weight: CubeTensor,
    out: CubeTensor,
    tables: Tables,
    routing: &Routing,
    side: Side,
) -> CubeTensor {
    let size = vector_size(&[&wide, &weight]);
    let chunks = routing.rank_max().div_ceil(EDGE);
    let cubes = CubeCount::Static(
        tables.tile_count as u32,
        chunks.div_ceil(MAX_CHUNKS) as u32,
        1,
    );
    record(&[&wide, &weight, &out]);
    let (client, dtype) = (wide.client.clone(), wide.dtype);
    shrink_kernel::launch(
        &client,
        cubes,
        cube_dim(UNITS, 1),
        size,
        wide.into_tensor_arg(),
        weight.into_tensor_arg(),
        tables.tiles.into_buffer_arg(),
        tables.segments.into_buffer_arg(),
        tables.dropout_rows.into_buffer_arg(),
        out.clone().into_tensor_arg(),
        routing.module(),
        u32::from(side == Side::Output),
        chunks.next_power_of_two().min(MAX_CHUNKS),
        side == Side::Input && routing.has_dropout(),
        burn::backend::cubecl::dtype_to_storage_type(dtype),
    );
    out
}

#[cube(launch)]
fn shrink_kernel<F: Float, N: Size>(
    wide: &Tensor<Vector<F, N>>,
    weight: &Tensor<Vector<f32, N>>,
    tiles: &[u32],
    segments: &[u32],
    dropout_rows: &[u32],
    out: &mut Tensor<f32>,
    module: u32,
    scaled: u32,
    #[comptime] chunks: usize,
    #[comptime] masked: bool,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let vectors = comptime!(WIDTH_TILE / size);
    let pitch = comptime!((WIDTH_TILE + PADDING) / size);
    let stride = comptime!((WIDTH_TILE + PADDING) as u32);
    let tile = CUBE_POS_X as usize * TILE_WORDS;
    let segment = tiles[tile] as usize * SEGMENT_WORDS;
    let first_row = tiles[tile + 1] as usize;
    let rows = tiles[tile + 2] as usize;
    let rank_start = segments[segment + RANK_START] as usize;
    let rank = segments[segment + RANK] as usize;
    let first_rank = CUBE_POS_Y as usize * (MAX_CHUNKS * EDGE);

    let unit = UNIT_POS as usize;
    let plane = unit / PLANE;
    let width = wide.shape(1) / size;
    let weight_stride = weight.stride(0) / size;

    let mut x =
        Shared::<[Vector<F, N>]>::new_slice(comptime!(ROW_TILE * ((WIDTH_TILE + PADDING) / size)));
    let mut w = Shared::<[Vector<F, N>]>::new_slice(comptime!(
        chunks * EDGE * ((WIDTH_TILE + PADDING) / size)
    ));
    let mut sums = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..comptime!(chunks * ROW_FRAGMENTS) {
        sums.push(Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            EDGE,
            EDGE,
            EDGE,
            MatrixLayout::Undefined,
            0.0,
        ));
    }

    if first_rank < rank {
        for step in 0..width.div_ceil(vectors) {
            for load in 0..comptime!(ROW_TILE * vectors / UNITS) {
                let at = load * UNITS + unit;
                let row = at / vectors;
                let column = step * vectors + at % vectors;
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
                x[row * pitch + at % vectors] = Vector::cast_from(value);
            }
            for load in 0..comptime!(chunks * EDGE * vectors / UNITS) {
                let at = load * UNITS + unit;
                let lane = at / vectors;
                let column = step * vectors + at % vectors;
                let mut value = Vector::<f32, N>::new(0.0);
                if first_rank + lane < rank && column < width {
                    value = weight[(rank_start + first_rank + lane) * weight_stride + column];
                }
                w[lane * pitch + at % vectors] = Vector::cast_from(value);
            }
            sync_cube();
            let from = plane * comptime!(EDGE / size);
            let (x_end, w_end) = (x.len(), w.len());
            #[unroll]
            for half in 0..ROW_FRAGMENTS {
                let at = half * EDGE * pitch + from;
                let left = Matrix::<Vector<F, N>>::from_slice(
                    MatrixIdent::A,
                    EDGE,
                    EDGE,
                    EDGE,
                    MatrixLayout::RowMajor,
                    &x[at..x_end],
                    stride,
                );
                #[unroll]
                for chunk in 0..chunks {
                    if first_rank + chunk * EDGE < rank {
                        let at = chunk * EDGE * pitch + from;
                        let right = Matrix::<Vector<F, N>>::from_slice(
                            MatrixIdent::B,
                            EDGE,
                            EDGE,
                            EDGE,
                            MatrixLayout::ColMajor,
                            &w[at..w_end],
                            stride,
                        );
                        let sum = &sums[comptime!(chunk * ROW_FRAGMENTS + half)];
                        cmma::execute(&left, &right, sum, sum);
                    }
                }
            }
            sync_cube();
        }

        let mut factor = 1.0f32;
        if scaled == 1 {
            factor = f32::reinterpret(segments[segment + SCALE]);
        }
        let mut partial = Shared::<[f32]>::new_slice(comptime!(PLANES * ROW_TILE * EDGE));
        let out_stride = out.stride(0);
        #[unroll]
        for chunk in 0..chunks {
            let chunk_rank = first_rank + chunk * EDGE;
            if chunk_rank < rank {
                let end = partial.len();
                #[unroll]
                for half in 0..ROW_FRAGMENTS {
                    let at = plane * comptime!(ROW_TILE * EDGE) + half * EDGE * EDGE;
                    cmma::store(
                        &mut partial[at..end],
                        &sums[comptime!(chunk * ROW_FRAGMENTS + half)],
                        comptime!(EDGE as u32),
                        MatrixLayout::RowMajor,
                    );
                }
                sync_cube();
                for store in 0..comptime!(ROW_TILE * EDGE / UNITS) {
                    let at = store * UNITS + unit;
                    let row = at / EDGE;
                    let lane = at % EDGE;
                    if row < rows && chunk_rank + lane < rank {
                        let mut sum = 0.0f32;
                        #[unroll]
                        for part in 0..PLANES {
                            sum += partial[part * (ROW_TILE * EDGE) + at];
                        }
                        out[(first_row + row) * out_stride + chunk_rank + lane] = sum * factor;
                    }
                }
                sync_cube();
            }
        }
    }
}
