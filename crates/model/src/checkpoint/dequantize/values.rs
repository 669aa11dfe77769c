use half::{bf16, f16};
use rayon::prelude::*;

use crate::checkpoint::TensorDtype;

/// A quantised weight in a memory-mapped file, with parts of the right sizes.
#[derive(Debug)]
pub(super) struct Quantized<'a> {
    pub(super) shape: [usize; 2],
    pub(super) codes: Codes<'a>,
    pub(super) groups: Groups,
    pub(super) scales: Grid,
    pub(super) zeros: Option<Grid>,
    /// A last factor of every value.
    pub(super) factor: f32,
    /// Type of the values.
    pub(super) dtype: TensorDtype,
}

#[derive(Debug)]
pub(super) enum Codes<'a> {
    Fp8(&'a [u8]),
    Int8(&'a [u8]),
    Packed {
        packed: Packed<'a>,
        /// Stored as `[d_in, d_out]`.
        transposed: bool,
        /// Code of zero.
        offset: f32,
    },
}

/// A matrix of unsigned integers of 4 or 8 bits in 32-bit words.
#[derive(Debug)]
pub(super) struct Packed<'a> {
    pub(super) words: &'a [u8],
    /// Words of a row of words.
    pub(super) width: usize,
    pub(super) bits: usize,
    /// A word has codes of one column, not of one row.
    pub(super) down: bool,
    /// Place of a code in its word, if it is not its number.
    pub(super) order: Option<[usize; 8]>,
}

impl Packed<'_> {
    pub(super) fn get(&self, row: usize, column: usize) -> f32 {
        let per_word = 32 / self.bits;
        let (word, place) = if self.down {
            (row / per_word * self.width + column, row % per_word)
        } else {
            (row * self.width + column / per_word, column % per_word)
        };
        let place = self.order.map_or(place, |order| order[place]);
        let word = &self.words[4 * word..][..4];
        let bit = place * self.bits;
        let code = word[bit / 8] >> (bit % 8) & (u8::MAX >> (8 - self.bits));
        f32::from(code)
    }
}

/// Groups of columns that share scales.
#[derive(Debug)]
pub(super) enum Groups {
    Of(usize),
    /// The group of each column.
    Listed(Vec<usize>),
}

impl Groups {
    fn of(&self, column: usize) -> usize {
        match self {
            Self::Of(size) => column / size,
            Self::Listed(groups) => groups[column],
        }
    }
}

/// Values by row and group.
#[derive(Debug)]
pub(super) struct Grid {
    pub(super) values: Vec<f32>,
    /// Rows that share values.
    pub(super) rows: usize,
    /// Distance of the values of neighbouring rows and of neighbouring groups.
    pub(super) strides: [usize; 2],
}

impl Grid {
    pub(super) fn get(&self, row: usize, group: usize) -> f32 {
        self.values[row / self.rows * self.strides[0] + group * self.strides[1]]
    }
}

impl Quantized<'_> {
    fn value(&self, row: usize, column: usize) -> f32 {
        let at = row * self.shape[1] + column;
        let code = match &self.codes {
            Codes::Fp8(bytes) => from_e4m3(bytes[at]),
            Codes::Int8(bytes) => f32::from(bytes[at].cast_signed()),
            Codes::Packed {
                packed,
                transposed: true,
                offset,
            } => packed.get(column, row) - offset,
            Codes::Packed { packed, offset, .. } => packed.get(row, column) - offset,
        };
        let group = self.groups.of(column);
        let zero = self
            .zeros
            .as_ref()
            .map_or(0.0, |zeros| zeros.get(row, group));
        (code - zero) * self.scales.get(row, group) * self.factor
    }

    pub(super) fn dense(&self) -> Vec<u8> {
        let [d_out, d_in] = self.shape;
        let size = self.dtype.size();
        let mut bytes = vec![0; d_out * d_in * size];
        let rows = bytes.par_chunks_mut((d_in * size).max(1)).enumerate();
        rows.for_each(|(row, out)| {
            for (column, out) in out.chunks_mut(size).enumerate() {
                let value = self.value(row, column);
                match self.dtype {
                    TensorDtype::Float32 => out.copy_from_slice(&value.to_le_bytes()),
                    TensorDtype::Float16 => {
                        out.copy_from_slice(&f16::from_f32(value).to_le_bytes());
                    }
                    TensorDtype::Bfloat16 => {
                        out.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
                    }
                }
            }
        });
        bytes
    }
}

/// An 8-bit float of 4 exponent and 3 mantissa bits, without infinities (Micikevicius et al. 2022, arXiv 2209.05433).
fn from_e4m3(byte: u8) -> f32 {
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(byte >> 3 & 0xf), f32::from(byte & 7));
    match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => sign * mantissa * 2f32.powi(-9),
        _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

/// The values of rows and groups.
pub(super) fn grid([rows, groups]: [usize; 2], value: impl Fn(usize, usize) -> f32) -> Grid {
    let value = &value;
    let values = (0..rows).flat_map(|row| (0..groups).map(move |group| value(row, group)));
    Grid {
        values: values.collect(),
        rows: 1,
        strides: [groups, 1],
    }
}
