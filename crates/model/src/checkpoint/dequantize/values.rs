use std::borrow::Cow;

use half::{bf16, f16};
use rayon::prelude::*;

use crate::checkpoint::TensorDtype;

/// A quantised weight in a memory-mapped file, with parts of the right shapes.
#[derive(Debug)]
pub(super) struct Quantized<'a> {
    pub(super) shape: [usize; 2],
    pub(super) codes: Codes<'a>,
    pub(super) groups: Groups<'a>,
    pub(super) scales: Grid<Floats<'a>>,
    pub(super) zeros: Option<Grid<Packed<'a>>>,
    /// A last factor of every value.
    pub(super) factor: f32,
    /// Type of the values.
    pub(super) dtype: TensorDtype,
}

#[derive(Debug)]
pub(super) enum Codes<'a> {
    Fp8(&'a [u8]),
    Int8(&'a [u8]),
    /// Stored as `[d_out, d_in]`.
    Rows(Packed<'a>),
    /// Stored as `[d_in, d_out]`.
    Columns(Packed<'a>),
}

/// A matrix of integers of 4 or 8 bits in 32-bit words.
#[derive(Debug)]
pub(super) struct Packed<'a> {
    pub(super) words: Cow<'a, [u8]>,
    /// Words of a row of words.
    pub(super) width: usize,
    pub(super) bits: usize,
    /// A word has codes of one column, not of one row.
    pub(super) down: bool,
    /// Place of a code in its word, if it is not its number.
    pub(super) order: Option<[usize; 8]>,
    /// Code of zero.
    pub(super) offset: f32,
}

impl Packed<'_> {
    fn get(&self, row: usize, column: usize) -> f32 {
        let per_word = 32 / self.bits;
        let (word, place) = if self.down {
            (row / per_word * self.width + column, row % per_word)
        } else {
            (row * self.width + column / per_word, column % per_word)
        };
        let place = self.order.map_or(place, |order| order[place]);
        let bit = place * self.bits;
        let byte = self.words[4 * word + bit / 8];
        f32::from(byte >> (bit % 8) & (u8::MAX >> (8 - self.bits))) - self.offset
    }
}

/// Floats in a file.
#[derive(Debug)]
pub(super) struct Floats<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) dtype: TensorDtype,
}

impl Floats<'_> {
    fn get(&self, index: usize) -> f32 {
        let word = &self.bytes[index * self.dtype.size()..];
        match self.dtype {
            TensorDtype::Float32 => f32::from_le_bytes([word[0], word[1], word[2], word[3]]),
            TensorDtype::Float16 => f16::from_le_bytes([word[0], word[1]]).to_f32(),
            TensorDtype::Bfloat16 => bf16::from_le_bytes([word[0], word[1]]).to_f32(),
        }
    }
}

/// Groups of columns that share scales.
#[derive(Debug)]
pub(super) enum Groups<'a> {
    Of(usize),
    /// The group of each column, as 32-bit words.
    Listed(&'a [[u8; 4]]),
}

impl Groups<'_> {
    fn of(&self, column: usize) -> usize {
        match self {
            Self::Of(size) => column / size,
            Self::Listed(groups) => u32::from_le_bytes(groups[column]) as usize,
        }
    }
}

/// Values by row and group.
#[derive(Debug)]
pub(super) struct Grid<T> {
    pub(super) values: T,
    /// Rows that share values.
    pub(super) rows: usize,
    pub(super) groups: usize,
    /// A group's values stand side by side, not a row's.
    pub(super) transposed: bool,
}

impl Grid<Floats<'_>> {
    /// The values of a row.
    fn row(&self, row: usize, rows: usize) -> Vec<f32> {
        let row = row / self.rows;
        let index = |group| {
            if self.transposed {
                group * rows + row
            } else {
                row * self.groups + group
            }
        };
        let values = (0..self.groups).map(|group| self.values.get(index(group)));
        values.collect()
    }
}

impl Grid<Packed<'_>> {
    /// The values of a row.
    fn row(&self, row: usize) -> Vec<f32> {
        let value = |group| {
            if self.transposed {
                self.values.get(group, row)
            } else {
                self.values.get(row, group)
            }
        };
        (0..self.groups).map(value).collect()
    }
}

impl Quantized<'_> {
    /// The values, row-major.
    pub(super) fn dense(&self) -> Vec<u8> {
        let [d_out, d_in] = self.shape;
        let size = self.dtype.size();
        let fp8: Vec<f32> = (0..=u8::MAX).map(from_e4m3).collect();
        let code = |row: usize, column: usize| match &self.codes {
            Codes::Fp8(bytes) => fp8[usize::from(bytes[row * d_in + column])],
            Codes::Int8(bytes) => f32::from(bytes[row * d_in + column].cast_signed()),
            Codes::Rows(packed) => packed.get(row, column),
            Codes::Columns(packed) => packed.get(column, row),
        };
        let mut bytes = vec![0; d_out * d_in * size];
        let rows = bytes.par_chunks_mut(d_in * size).enumerate();
        rows.for_each(|(row, out)| {
            let scales = self.scales.row(row, d_out);
            let zeros = self.zeros.as_ref().map(|zeros| zeros.row(row));
            for (column, out) in out.chunks_mut(size).enumerate() {
                let group = self.groups.of(column);
                let zero = zeros.as_ref().map_or(0.0, |zeros| zeros[group]);
                let value = (code(row, column) - zero) * scales[group] * self.factor;
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
