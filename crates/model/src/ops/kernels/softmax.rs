//! Probabilities of causal attention from its scores, and their gradient.
//!
//! A row of scores belongs to one query of one head. Units share a row; a cube takes several short rows.
//! Only the keys that the query sees are read. Rows that fit in the registers of their units are read once,
//! all of a unit's loads at a time; longer ones once from memory and once from cache. Every place of the
//! result is written once, zeros for keys that are not seen.

use batchlora_kernels::launch::{cube_dim, empty, record, record_elements, wide_vector_size};
use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    chunks::SHORT,
    rows::{LOWEST, RowLayout, VECTORS_PER_UNIT, element_max, element_sum, row_max, row_sum},
};

/// Positions of the queries and keys of a block of scores in their sequences.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    /// Position of the first query.
    pub(super) first_query: usize,
    /// Queries of a head; the rows of a batch are the queries of one head after another.
    pub(super) queries: usize,
    /// Position of the first key.
    pub(super) first_key: usize,
    /// A query sees itself and `window - 1` before it.
    pub(super) window: Option<usize>,
}

impl Places {
    /// Positions are below 2^31, so that a window of that size hides nothing.
    fn window(self) -> u32 {
        self.window.map_or(u32::MAX / 2, |window| window as u32)
    }

    /// Scores of one head that its queries see.
    fn seen(self) -> usize {
        let queries = self.first_query..self.first_query + self.queries;
        let window = self.window.unwrap_or(usize::MAX);
        queries
            .map(|query| (query + 1 - self.first_key).min(window))
            .sum()
    }
}

/// Scores `[batch, heads · queries, keys]` to probabilities of type `dtype`, in place if the scores have
/// it.
pub(super) fn softmax(scores: CubeTensor, places: Places, scale: f32, dtype: DType) -> CubeTensor {
    let [batch, rows, keys] = scores.shape().dims();
    let in_place = dtype == scores.dtype;
    let out = if in_place {
        scores.clone()
    } else {
        empty(&scores, [batch, rows, keys], dtype)
    };
    let size = wide_vector_size(&[&scores, &out]);
    let layout = row_layout(keys, size);
    record_elements(
        scores.dtype,
        batch * (rows / places.queries) * places.seen(),
    );
    record(&[], &[&out]);
    let (client, dtypes) = (scores.client.clone(), [scores.dtype, dtype]);
    softmax_kernel::launch(
        &client,
        layout.cubes(batch * rows),
        cube_dim(layout.lanes, layout.rows),
        size,
        scores.into_tensor_arg(),
        if in_place {
            out.as_tensor_alias(0)
        } else {
            out.clone().into_tensor_arg()
        },
        places.first_query as u32,
        places.queries as u32,
        places.first_key as u32,
        places.window(),
        scale,
        layout.lanes,
        layout.rows,
        keys / size <= layout.lanes * VECTORS_PER_UNIT,
        dtypes.map(burn::backend::cubecl::dtype_to_storage_type),
    );
    out
}

/// `scale · P ∘ (dP - rowsum(P ∘ dP))` in the type of P, in place of dP if it is of that type.
pub(super) fn softmax_backward(
    p: CubeTensor,
    dp: CubeTensor,
    places: Places,
    scale: f32,
) -> CubeTensor {
    let [batch, rows, keys] = p.shape().dims();
    let in_place = p.dtype == dp.dtype;
    let out = if in_place {
        dp.clone()
    } else {
        empty(&p, [batch, rows, keys], p.dtype)
    };
    let size = wide_vector_size(&[&p, &dp, &out]);
    let layout = row_layout(keys, size);
    let seen = batch * (rows / places.queries) * places.seen();
    record_elements(p.dtype, seen);
    record_elements(dp.dtype, seen);
    record(&[], &[&out]);
    let (client, dtypes) = (p.client.clone(), [p.dtype, dp.dtype]);
    softmax_backward_kernel::launch(
        &client,
        layout.cubes(batch * rows),
        cube_dim(layout.lanes, layout.rows),
        size,
        p.into_tensor_arg(),
        dp.into_tensor_arg(),
        if in_place {
            out.as_tensor_alias(1)
        } else {
            out.clone().into_tensor_arg()
        },
        places.first_query as u32,
        places.queries as u32,
        places.first_key as u32,
        places.window(),
        scale,
        layout.lanes,
        layout.rows,
        dtypes.map(burn::backend::cubecl::dtype_to_storage_type),
    );
    out
}

/// The same number of units for all rows that may share a block with shorter ones, so that padding does not
/// change the order of a sum.
pub(super) fn row_layout(keys: usize, size: usize) -> RowLayout {
    RowLayout::new(keys.max(SHORT) / size)
}

#[cube(launch)]
fn softmax_kernel<S: Float, F: Float, N: Size>(
    scores: &Tensor<Vector<S, N>>,
    out: &mut Tensor<Vector<F, N>>,
    first_query: u32,
    queries: u32,
    first_key: u32,
    window: u32,
    scale: f32,
    #[comptime] lanes: usize,
    #[comptime] rows: usize,
    #[comptime] held: bool,
    #[define(S, F)] _dtypes: [ElemType; 2],
) {
    let size = N::value();
    let lane = UNIT_POS_X as usize;
    let row = CUBE_POS * rows + UNIT_POS_Y as usize;
    let per_batch = scores.shape(1);
    let batch = row / per_batch;
    let within = row % per_batch;
    let inside = batch < scores.shape(0);
    let width = scores.shape(2) / size;
    let scores_row = batch * (scores.stride(0) / size) + within * (scores.stride(1) / size);
    let out_row = batch * (out.stride(0) / size) + within * (out.stride(1) / size);

    let (begin, end) = seen_keys(within as u32 % queries, first_query, first_key, window);

    if comptime!(held) {
        let mut values = Array::<Vector<f32, N>>::new(VECTORS_PER_UNIT);
        #[unroll]
        for step in 0..VECTORS_PER_UNIT {
            let column = step * lanes + lane;
            // A key that is seen stands for one that is not: no branch, and nothing more to read.
            let seen = column.max(begin / size).min((end - 1) / size);
            let value = Vector::cast_from(scores[scores_row + seen]);
            values[step] = visible::<N>(value, scale, column, begin, end);
        }
        let mut largest = LOWEST.runtime();
        #[unroll]
        for step in 0..VECTORS_PER_UNIT {
            largest = largest.max(element_max::<N>(values[step]));
        }
        let highest = row_max(largest, lanes);
        let mut sum = 0.0f32;
        #[unroll]
        for step in 0..VECTORS_PER_UNIT {
            values[step] = (values[step] - Vector::new(highest)).exp();
            sum += element_sum::<N>(values[step]);
        }
        let share = 1.0f32 / row_sum(sum, lanes);
        #[unroll]
        for step in 0..VECTORS_PER_UNIT {
            let column = step * lanes + lane;
            if inside && column < width {
                out[out_row + column] = Vector::cast_from(values[step] * Vector::new(share));
            }
        }
    } else {
        let mut largest = LOWEST.runtime();
        let mut sum = 0.0f32;
        for step in 0..width.div_ceil(lanes) {
            let column = step * lanes + lane;
            if inside && column < width && (column + 1) * size > begin && column * size < end {
                let value = visible::<N>(
                    Vector::cast_from(scores[scores_row + column]),
                    scale,
                    column,
                    begin,
                    end,
                );
                let top = element_max::<N>(value);
                if top > largest {
                    sum *= f32::exp(largest - top);
                    largest = top;
                }
                let shifted = value - Vector::new(largest);
                sum += element_sum::<N>(shifted.exp());
            }
        }
        let highest = row_max(largest, lanes);
        let total = row_sum(sum * f32::exp(largest - highest), lanes);

        for step in 0..width.div_ceil(lanes) {
            let column = step * lanes + lane;
            if inside && column < width {
                let mut probability = Vector::<f32, N>::new(0.0);
                if (column + 1) * size > begin && column * size < end {
                    let value = visible::<N>(
                        Vector::cast_from(scores[scores_row + column]),
                        scale,
                        column,
                        begin,
                        end,
                    );
                    let shifted = value - Vector::new(highest);
                    probability = shifted.exp() / Vector::new(total);
                }
                out[out_row + column] = Vector::cast_from(probability);
            }
        }
    }
}

/// Keys begin..end of a part are seen by this query of it.
#[cube]
fn seen_keys(query: u32, first_query: u32, first_key: u32, window: u32) -> (usize, usize) {
    let seen = first_query + query + 1;
    let end = (seen - first_key) as usize;
    let mut begin = 0usize;
    if seen > first_key + window {
        begin = (seen - first_key - window) as usize;
    }
    (begin, end)
}

/// Scaled scores; lowest, so that the exponential is zero, where the key is not seen.
#[cube]
fn visible<N: Size>(
    scores: Vector<f32, N>,
    scale: f32,
    column: usize,
    begin: usize,
    end: usize,
) -> Vector<f32, N> {
    let size = N::value();
    let mut value = scores * Vector::new(scale);
    #[unroll]
    for index in 0..size {
        let key = column * size + index;
        if key < begin || key >= end {
            value.insert(index, LOWEST);
        }
    }
    value
}

#[cube(launch)]
fn softmax_backward_kernel<F: Float, S: Float, N: Size>(
    p: &Tensor<Vector<F, N>>,
    dp: &Tensor<Vector<S, N>>,
    out: &mut Tensor<Vector<F, N>>,
    first_query: u32,
    queries: u32,
    first_key: u32,
    window: u32,
    scale: f32,
    #[comptime] lanes: usize,
    #[comptime] rows: usize,
    #[define(F, S)] _dtypes: [ElemType; 2],
) {
    let size = N::value();
    let lane = UNIT_POS_X as usize;
    let row = CUBE_POS * rows + UNIT_POS_Y as usize;
    let per_batch = p.shape(1);
    let batch = row / per_batch;
    let within = row % per_batch;
    let inside = batch < p.shape(0);
    let width = p.shape(2) / size;
    let p_row = batch * (p.stride(0) / size) + within * (p.stride(1) / size);
    let dp_row = batch * (dp.stride(0) / size) + within * (dp.stride(1) / size);
    let out_row = batch * (out.stride(0) / size) + within * (out.stride(1) / size);
    let (begin, end) = seen_keys(within as u32 % queries, first_query, first_key, window);

    let mut products = Vector::<f32, N>::new(0.0);
    for step in 0..width.div_ceil(lanes) {
        let column = step * lanes + lane;
        if inside && column < width && (column + 1) * size > begin && column * size < end {
            let probability = Vector::<f32, N>::cast_from(p[p_row + column]);
            products += probability * Vector::cast_from(dp[dp_row + column]);
        }
    }
    let along = row_sum(element_sum::<N>(products), lanes);
    for step in 0..width.div_ceil(lanes) {
        let column = step * lanes + lane;
        if inside && column < width {
            let mut slope = Vector::<f32, N>::new(0.0);
            if (column + 1) * size > begin && column * size < end {
                let probability = Vector::<f32, N>::cast_from(p[p_row + column]);
                let gradient = Vector::<f32, N>::cast_from(dp[dp_row + column]);
                slope = probability * (gradient - Vector::new(along)) * Vector::new(scale);
            }
            out[out_row + column] = Vector::cast_from(slope);
        }
    }
}
