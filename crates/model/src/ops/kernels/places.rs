//! Rows of a batch to heads of sequences side by side, and back.
//!
//! A unit takes one vector of one head at one place; neighbours in memory are neighbours on both
//! sides. Every row is read and every place written once, zeros beyond a sequence's end.

use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, ops::numeric::zeros_client, tensor::CubeTensor};
use cubecl::prelude::*;

use batchlora::launch::{cube_dim, empty, record, vector_size};

use super::{
    rows::{UNITS, cubes},
    tables::{SEQUENCE_WORDS, SequenceTable},
};

/// Places that sequences have side by side.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) table: &'a SequenceTable,
    /// First sequence of the table.
    pub(super) first_sequence: usize,
    /// Number of sequences.
    pub(super) sequences: usize,
    /// Position of the first place in its sequence.
    pub(super) first_position: usize,
    /// Places that each sequence has here.
    pub(super) places: usize,
}

/// Heads of the rows and how many of them share a batch of products.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) of_keys: usize,
    /// Heads of these rows per key and value head.
    pub(super) group: usize,
    pub(super) head_dim: usize,
}

impl Block<'_> {
    /// `[rows, heads · head_dim]` to `[sequences · kv_heads, group · places, head_dim]`.
    pub(super) fn gather(self, rows: &CubeTensor, heads: Heads) -> CubeTensor {
        let batch = self.sequences * heads.of_keys;
        let shape = [batch, heads.group * self.places, heads.head_dim];
        let out = empty(rows, shape, rows.dtype);
        let size = vector_size(&[rows, &out]);
        record(&[&out, &out]);
        gather_kernel::launch(
            &rows.client,
            cubes((shape.iter().product::<usize>() / size).div_ceil(UNITS)),
            cube_dim(UNITS, 1),
            size,
            rows.clone().into_tensor_arg(),
            self.table.words.clone().into_buffer_arg(),
            out.clone().into_tensor_arg(),
            self.first_sequence as u32,
            heads.of_keys as u32,
            self.first_position as u32,
            self.places as u32,
            burn::backend::cubecl::dtype_to_storage_type(rows.dtype),
        );
        out
    }

    /// The way back into `rows`, without what is beyond a sequence's end.
    pub(super) fn scatter(self, heads: CubeTensor, kv_heads: usize, rows: &CubeTensor) {
        let size = vector_size(&[&heads, rows]);
        record(&[&heads, &heads]);
        let dtypes = [heads.dtype, rows.dtype];
        scatter_kernel::launch(
            &rows.client,
            cubes((heads.shape().num_elements() / size).div_ceil(UNITS)),
            cube_dim(UNITS, 1),
            size,
            heads.into_tensor_arg(),
            self.table.words.clone().into_buffer_arg(),
            rows.clone().into_tensor_arg(),
            self.first_sequence as u32,
            kv_heads as u32,
            self.first_position as u32,
            self.places as u32,
            dtypes.map(burn::backend::cubecl::dtype_to_storage_type),
        );
    }
}

/// Sums over the blocks of a long sequence, `[kv_heads, places, head_dim]` in `float32`.
pub(super) fn zero_sums(like: &CubeTensor, shape: [usize; 3]) -> CubeTensor {
    zeros_client(
        like.client.clone(),
        like.device.clone(),
        shape.into(),
        burn::tensor::DType::F32,
    )
}

/// Adds a block's part to the sums, whose place `first` is the part's first.
pub(super) fn add_to_sums(sums: &CubeTensor, part: CubeTensor, first: usize) {
    let size = vector_size(&[sums, &part]);
    record(&[&part, &part, &part]);
    add_kernel::launch(
        &sums.client,
        cubes((part.shape().num_elements() / size).div_ceil(UNITS)),
        cube_dim(UNITS, 1),
        size,
        part.into_tensor_arg(),
        sums.clone().into_tensor_arg(),
        first as u32,
    );
}

#[cube(launch)]
fn gather_kernel<F: Float, N: Size>(
    rows: &Tensor<Vector<F, N>>,
    sequences: &[u32],
    out: &mut Tensor<Vector<F, N>>,
    first_sequence: u32,
    kv_heads: u32,
    first_position: u32,
    places: u32,
    #[define(F)] _dtype: ElemType,
) {
    let size = N::value();
    let kv_heads = kv_heads as usize;
    let places = places as usize;
    let width = out.shape(2) / size;
    let column = ABSOLUTE_POS % width;
    let line = ABSOLUTE_POS / width;
    let within = line % out.shape(1);
    let batch = line / out.shape(1);
    let out_at = batch * (out.stride(0) / size) + within * (out.stride(1) / size) + column;
    if batch < out.shape(0) {
        let group = out.shape(1) / places;
        let head = batch % kv_heads * group + within / places;
        let position = first_position as usize + within % places;
        let words = (first_sequence as usize + batch / kv_heads) * SEQUENCE_WORDS;
        let mut value = Vector::<F, N>::new(F::new(0.0));
        if position < sequences[words + 1] as usize {
            let row = sequences[words] as usize + position;
            value = rows[row * (rows.stride(0) / size) + head * width + column];
        }
        out[out_at] = value;
    }
}

#[cube(launch)]
fn scatter_kernel<P: Float, F: Float, N: Size>(
    heads: &Tensor<Vector<P, N>>,
    sequences: &[u32],
    rows: &mut Tensor<Vector<F, N>>,
    first_sequence: u32,
    kv_heads: u32,
    first_position: u32,
    places: u32,
    #[define(P, F)] _dtypes: [ElemType; 2],
) {
    let size = N::value();
    let kv_heads = kv_heads as usize;
    let places = places as usize;
    let width = heads.shape(2) / size;
    let column = ABSOLUTE_POS % width;
    let line = ABSOLUTE_POS / width;
    let within = line % heads.shape(1);
    let batch = line / heads.shape(1);
    let row_stride = rows.stride(0) / size;
    if batch < heads.shape(0) {
        let group = heads.shape(1) / places;
        let head = batch % kv_heads * group + within / places;
        let position = first_position as usize + within % places;
        let words = (first_sequence as usize + batch / kv_heads) * SEQUENCE_WORDS;
        if position < sequences[words + 1] as usize {
            let row = sequences[words] as usize + position;
            let at = batch * (heads.stride(0) / size) + within * (heads.stride(1) / size) + column;
            rows[row * row_stride + head * width + column] = Vector::cast_from(heads[at]);
        }
    }
}

#[cube(launch)]
fn add_kernel<N: Size>(
    part: &Tensor<Vector<f32, N>>,
    sums: &mut Tensor<Vector<f32, N>>,
    first: u32,
) {
    let size = N::value();
    let width = part.shape(2) / size;
    let column = ABSOLUTE_POS % width;
    let line = ABSOLUTE_POS / width;
    let within = line % part.shape(1);
    let batch = line / part.shape(1);
    let place = within + first as usize;
    let at = batch * (sums.stride(0) / size) + place * (sums.stride(1) / size) + column;
    if batch < part.shape(0) {
        let part_at = batch * (part.stride(0) / size) + within * (part.stride(1) / size) + column;
        let sum = sums[at] + part[part_at];
        sums[at] = sum;
    }
}
