//! Rows of a batch to heads of sequences side by side, and back.
//!
//! A unit takes one vector of one head at one place; neighbours in memory are neighbours on both
//! sides. Every row is read and every place written once, zeros beyond a sequence's end.

use batchlora_kernels::launch::{
    cube_dim, cubes, empty, record, record_elements, wide_vector_size,
};
use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    rows::UNITS,
    tables::{SEQUENCE_WORDS, SequenceTable},
};

/// Places that sequences have side by side.
///
/// The query heads that share a key and value head are one batch of products, `[group · places,
/// head_dim]`: a part's queries of one head after another, and one part after another.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) table: &'a SequenceTable,
    /// First sequence of the table.
    pub(super) first_sequence: usize,
    /// Number of sequences.
    pub(super) sequences: usize,
    /// Places of each sequence.
    pub(super) places: usize,
    /// Places of a part; the last has fewer.
    pub(super) of_part: usize,
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
    pub(super) fn shape(self, heads: Heads) -> [usize; 3] {
        let batch = self.sequences * heads.of_keys;
        [batch, heads.group * self.places, heads.head_dim]
    }

    /// `[rows, heads · head_dim]` to `[sequences · kv_heads, group · places, head_dim]`.
    pub(super) fn gather(self, rows: &CubeTensor, heads: Heads) -> CubeTensor {
        let out = empty(rows, self.shape(heads), rows.dtype);
        let size = wide_vector_size(&[rows, &out]);
        record_elements(rows.dtype, out.shape().num_elements());
        record(&[], &[&out]);
        gather_kernel::launch(
            &rows.client,
            cubes((out.shape().num_elements() / size).div_ceil(UNITS)),
            cube_dim(UNITS, 1),
            size,
            rows.clone().into_tensor_arg(),
            self.table.words.clone().into_buffer_arg(),
            out.clone().into_tensor_arg(),
            self.first_sequence as u32,
            heads.of_keys as u32,
            self.places as u32,
            self.of_part as u32,
            burn::backend::cubecl::dtype_to_storage_type(rows.dtype),
        );
        out
    }

    /// [`gather`](Self::gather) of two at once.
    pub(super) fn gather_both(self, rows: [&CubeTensor; 2], heads: Heads) -> [CubeTensor; 2] {
        let [first, second] = rows;
        let outs = rows.map(|rows| empty(rows, self.shape(heads), rows.dtype));
        let size = wide_vector_size(&[first, second, &outs[0], &outs[1]]);
        record_elements(first.dtype, 2 * outs[0].shape().num_elements());
        record(&[], &[&outs[0], &outs[1]]);
        gather_both_kernel::launch(
            &first.client,
            cubes((outs[0].shape().num_elements() / size).div_ceil(UNITS)),
            cube_dim(UNITS, 1),
            size,
            first.clone().into_tensor_arg(),
            second.clone().into_tensor_arg(),
            self.table.words.clone().into_buffer_arg(),
            outs[0].clone().into_tensor_arg(),
            outs[1].clone().into_tensor_arg(),
            self.first_sequence as u32,
            heads.of_keys as u32,
            self.places as u32,
            self.of_part as u32,
            burn::backend::cubecl::dtype_to_storage_type(first.dtype),
        );
        outs
    }

    /// The inverse into `rows`, without places beyond a sequence's end.
    pub(super) fn scatter(self, places: CubeTensor, heads: Heads, rows: &CubeTensor) {
        let size = wide_vector_size(&[&places, rows]);
        record(&[&places], &[]);
        record_elements(rows.dtype, places.shape().num_elements());
        let dtypes = [places.dtype, rows.dtype];
        scatter_kernel::launch(
            &rows.client,
            cubes((places.shape().num_elements() / size).div_ceil(UNITS)),
            cube_dim(UNITS, 1),
            size,
            places.into_tensor_arg(),
            self.table.words.clone().into_buffer_arg(),
            rows.clone().into_tensor_arg(),
            self.first_sequence as u32,
            heads.of_keys as u32,
            self.places as u32,
            self.of_part as u32,
            dtypes.map(burn::backend::cubecl::dtype_to_storage_type),
        );
    }

    /// [`scatter`](Self::scatter) of two at once.
    pub(super) fn scatter_both(
        self,
        places: [CubeTensor; 2],
        heads: Heads,
        rows: [&CubeTensor; 2],
    ) {
        let [first, second] = places;
        let size = wide_vector_size(&[&first, &second, rows[0], rows[1]]);
        record(&[&first, &second], &[]);
        record_elements(rows[0].dtype, 2 * first.shape().num_elements());
        let dtypes = [first.dtype, rows[0].dtype];
        scatter_both_kernel::launch(
            &first.client.clone(),
            cubes((first.shape().num_elements() / size).div_ceil(UNITS)),
            cube_dim(UNITS, 1),
            size,
            first.into_tensor_arg(),
            second.into_tensor_arg(),
            self.table.words.clone().into_buffer_arg(),
            rows[0].clone().into_tensor_arg(),
            rows[1].clone().into_tensor_arg(),
            self.first_sequence as u32,
            heads.of_keys as u32,
            self.places as u32,
            self.of_part as u32,
            dtypes.map(burn::backend::cubecl::dtype_to_storage_type),
        );
    }
}

/// Position of one vector of one head.
#[derive(CubeType, Clone, Copy)]
struct Place {
    /// Within the batch.
    inside: bool,
    /// In a sequence, not in its padding.
    seen: bool,
    batch: usize,
    /// Line of the batch.
    line: usize,
    /// Vector of the head.
    column: usize,
    row: usize,
    /// Vector of the row, which has all heads.
    row_column: usize,
}

/// That of this unit, with places `[batches, lines, width]`.
#[cube]
fn place(
    batches: usize,
    lines: usize,
    width: usize,
    sequences: &[u32],
    first_sequence: u32,
    kv_heads: u32,
    places: u32,
    of_part: u32,
) -> Place {
    let kv_heads = kv_heads as usize;
    let places = places as usize;
    let of_part = of_part as usize;
    let column = ABSOLUTE_POS % width;
    let line = ABSOLUTE_POS / width % lines;
    let batch = ABSOLUTE_POS / width / lines;
    let group = lines / places;
    let first = line / (group * of_part) * of_part;
    let in_part = line - first * group;
    let mut length = places - first;
    if length > of_part {
        length = of_part;
    }
    let head = batch % kv_heads * group + in_part / length;
    let position = first + in_part % length;
    let inside = batch < batches;
    let mut seen = false;
    let mut row = 0usize;
    if inside {
        let words = (first_sequence as usize + batch / kv_heads) * SEQUENCE_WORDS;
        seen = position < sequences[words + 1] as usize;
        row = sequences[words] as usize + position;
    }
    Place {
        inside,
        seen,
        batch,
        line,
        column,
        row,
        row_column: head * width + column,
    }
}

#[cube]
fn take<F: Float, N: Size>(
    rows: &Tensor<Vector<F, N>>,
    out: &mut Tensor<Vector<F, N>>,
    place: &Place,
) {
    let size = N::value();
    if place.inside {
        let mut value = Vector::<F, N>::new(F::new(0.0));
        if place.seen {
            value = rows[place.row * (rows.stride(0) / size) + place.row_column];
        }
        let line = place.batch * (out.stride(0) / size) + place.line * (out.stride(1) / size);
        out[line + place.column] = value;
    }
}

#[cube]
fn give<P: Float, F: Float, N: Size>(
    places: &Tensor<Vector<P, N>>,
    rows: &mut Tensor<Vector<F, N>>,
    place: &Place,
) {
    let size = N::value();
    if place.inside && place.seen {
        let line = place.batch * (places.stride(0) / size) + place.line * (places.stride(1) / size);
        let at = place.row * (rows.stride(0) / size) + place.row_column;
        rows[at] = Vector::cast_from(places[line + place.column]);
    }
}

#[cube(launch)]
fn gather_kernel<F: Float, N: Size>(
    rows: &Tensor<Vector<F, N>>,
    sequences: &[u32],
    out: &mut Tensor<Vector<F, N>>,
    first_sequence: u32,
    kv_heads: u32,
    places: u32,
    of_part: u32,
    #[define(F)] _dtype: ElemType,
) {
    let place = place(
        out.shape(0),
        out.shape(1),
        out.shape(2) / N::value(),
        sequences,
        first_sequence,
        kv_heads,
        places,
        of_part,
    );
    take(rows, out, &place);
}

#[cube(launch)]
fn gather_both_kernel<F: Float, N: Size>(
    first: &Tensor<Vector<F, N>>,
    second: &Tensor<Vector<F, N>>,
    sequences: &[u32],
    first_out: &mut Tensor<Vector<F, N>>,
    second_out: &mut Tensor<Vector<F, N>>,
    first_sequence: u32,
    kv_heads: u32,
    places: u32,
    of_part: u32,
    #[define(F)] _dtype: ElemType,
) {
    let place = place(
        first_out.shape(0),
        first_out.shape(1),
        first_out.shape(2) / N::value(),
        sequences,
        first_sequence,
        kv_heads,
        places,
        of_part,
    );
    take(first, first_out, &place);
    take(second, second_out, &place);
}

#[cube(launch)]
fn scatter_kernel<P: Float, F: Float, N: Size>(
    heads: &Tensor<Vector<P, N>>,
    sequences: &[u32],
    rows: &mut Tensor<Vector<F, N>>,
    first_sequence: u32,
    kv_heads: u32,
    places: u32,
    of_part: u32,
    #[define(P, F)] _dtypes: [ElemType; 2],
) {
    let place = place(
        heads.shape(0),
        heads.shape(1),
        heads.shape(2) / N::value(),
        sequences,
        first_sequence,
        kv_heads,
        places,
        of_part,
    );
    give(heads, rows, &place);
}

#[cube(launch)]
fn scatter_both_kernel<P: Float, F: Float, N: Size>(
    first: &Tensor<Vector<P, N>>,
    second: &Tensor<Vector<P, N>>,
    sequences: &[u32],
    first_rows: &mut Tensor<Vector<F, N>>,
    second_rows: &mut Tensor<Vector<F, N>>,
    first_sequence: u32,
    kv_heads: u32,
    places: u32,
    of_part: u32,
    #[define(P, F)] _dtypes: [ElemType; 2],
) {
    let place = place(
        first.shape(0),
        first.shape(1),
        first.shape(2) / N::value(),
        sequences,
        first_sequence,
        kv_heads,
        places,
        of_part,
    );
    give(first, first_rows, &place);
    give(second, second_rows, &place);
}
