//! Weights in 4-bit NormalFloat (NF4; Dettmers et al. 2023, arXiv 2305.14314, section 3), in the layout and with the
//! roundings of bitsandbytes 0.50.
//!
//! A weight `[d_out, d_in]` is cut row-major into blocks of [`BLOCK`]. An element is a code into [`TABLE`], times the
//! largest absolute value of its block. Double quantisation stores these scales in 8 bits, in blocks of [`NESTED_BLOCK`].

use std::ops::Range;

use burn::tensor::FloatDType;
use half::{bf16, f16};
use rayon::prelude::*;

use crate::BatchLoraError;

/// Elements that share a scale.
pub const BLOCK: usize = 64;
/// Scales that share a scale.
pub const NESTED_BLOCK: usize = 256;
/// The values of the codes: quantiles of a normal distribution, scaled to [-1, 1] (appendix E of the paper).
pub const TABLE: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];
/// Codes in a word of a device.
pub(crate) const CODES: usize = 8;
/// Smallest scale that is divided by.
const SMALLEST: f32 = 1e-38;
/// Blocks that a thread takes at a time.
const BLOCKS: usize = 256;

/// How a weight lies in two tensors on a device: codes in 32-bit words, of which the lowest byte has the first two, and
/// numbers in `float32`, which begin with [`TABLE`]. These go on with a scale for each block; with double quantisation
/// with 256 values, the offset and the scales of scales, and the codes of scales follow the others, four to a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nf4Layout {
    /// `[d_out, d_in]`.
    pub(crate) shape: [usize; 2],
    /// The type that values are rounded to.
    pub(crate) rounding: FloatDType,
    /// The type of the operands, in which values are then stored.
    pub(crate) dtype: FloatDType,
    pub(crate) double_quant: bool,
    /// Most elements that are made dense at a time, about.
    pub(crate) part: usize,
}

/// Rows of the even parts of a weight `[d_out, d_in]`, whole blocks of about `most` elements.
fn part_rows([d_out, d_in]: [usize; 2], most: usize) -> usize {
    let parts = (d_out * d_in).div_ceil(most);
    d_out.div_ceil(parts.max(1)).next_multiple_of(BLOCK)
}

impl Nf4Layout {
    /// The rows that are made dense at a time.
    pub(crate) fn parts(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let rows = part_rows(self.shape, self.part);
        let [d_out, _] = self.shape;
        let starts = (0..d_out).step_by(rows);
        starts.map(move |start| start..(start + rows).min(d_out))
    }

    /// The scale of a block.
    pub(crate) fn scale(&self, codes: &[u32], scales: &[f32], block: usize) -> f32 {
        let scales = &scales[TABLE.len()..];
        if !self.double_quant {
            return scales[block];
        }
        let [d_out, d_in] = self.shape;
        let word = codes[(d_out * d_in).div_ceil(CODES) + block / 4];
        let code = word >> (8 * (block % 4)) & 0xff;
        scales[code as usize] * scales[257 + block / NESTED_BLOCK] + scales[256]
    }
}

/// A weight `[d_out, d_in]` in NF4, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Nf4 {
    shape: [usize; 2],
    rounding: FloatDType,
    codes: Vec<u8>,
    scales: Nf4Scales,
}

/// The scales of a weight's blocks.
#[derive(Debug, Clone, PartialEq)]
pub enum Nf4Scales {
    /// One for each block.
    Plain(Vec<f32>),
    /// `map[code] · absmax + offset`.
    Nested {
        /// One for each block.
        codes: Vec<u8>,
        /// The values of the codes.
        map: Box<[f32; 256]>,
        /// One for each [`NESTED_BLOCK`] codes.
        absmax: Vec<f32>,
        /// The mean of the scales.
        offset: f32,
    },
}

impl Nf4 {
    /// A weight from its parts: codes two to a byte, the first in the upper half, and the type that values are rounded
    /// to, which is that of the weight before it was quantised.
    ///
    /// # Errors
    /// [`BatchLoraError::Shape`] if there are more or fewer codes or scales than the shape has.
    pub fn new(
        shape: [usize; 2],
        rounding: FloatDType,
        codes: Vec<u8>,
        scales: Nf4Scales,
    ) -> Result<Self, BatchLoraError> {
        let elements = shape[0] * shape[1];
        let blocks = elements.div_ceil(BLOCK);
        let expect = |what: &str, expected: usize, found: usize| {
            if expected == found {
                return Ok(());
            }
            Err(BatchLoraError::Shape(format!(
                "{found} {what} for a weight {shape:?} in NF4, which has {expected}"
            )))
        };
        expect("bytes of codes", elements.div_ceil(2), codes.len())?;
        match &scales {
            Nf4Scales::Plain(scales) => expect("scales", blocks, scales.len())?,
            Nf4Scales::Nested { codes, absmax, .. } => {
                expect("codes of scales", blocks, codes.len())?;
                expect(
                    "scales of scales",
                    blocks.div_ceil(NESTED_BLOCK),
                    absmax.len(),
                )?;
            }
        }
        Ok(Self {
            shape,
            rounding,
            codes,
            scales,
        })
    }

    /// Quantises values `[d_out, d_in]`, row-major, that are of type `rounding`.
    ///
    /// # Panics
    /// If there are more or fewer values than the shape has.
    pub fn quantize(
        values: &[f32],
        shape: [usize; 2],
        rounding: FloatDType,
        double_quant: bool,
    ) -> Self {
        assert_eq!(values.len(), shape[0] * shape[1], "values of {shape:?}");
        let mut codes = vec![0; values.len().div_ceil(2)];
        let mut scales = vec![0.0; values.len().div_ceil(BLOCK)];
        let blocks = codes.par_chunks_mut(BLOCK / 2).zip(&mut scales);
        let blocks = blocks.zip(values.par_chunks(BLOCK)).with_min_len(BLOCKS);
        blocks.for_each(|((codes, scale), values)| *scale = quantize_block(values, codes));
        let scales = if double_quant {
            nested(&scales)
        } else {
            Nf4Scales::Plain(scales)
        };
        Self {
            shape,
            rounding,
            codes,
            scales,
        }
    }

    /// A weight of random codes, the same for every shape, with scales of 0.05: for measuring speed.
    pub fn random(shape: [usize; 2], rounding: FloatDType, double_quant: bool) -> Self {
        let elements = shape[0] * shape[1];
        let mut state = 0u32;
        let codes = (0..elements.div_ceil(2)).map(|_| {
            // Numerical Recipes' generator.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        let scales = vec![0.05; elements.div_ceil(BLOCK)];
        Self {
            shape,
            rounding,
            codes: codes.collect(),
            scales: if double_quant {
                nested(&scales)
            } else {
                Nf4Scales::Plain(scales)
            },
        }
    }

    /// Bytes of a weight on a device.
    pub fn device_bytes(shape: [usize; 2], double_quant: bool) -> usize {
        let elements = shape[0] * shape[1];
        let blocks = elements.div_ceil(BLOCK);
        let (codes, scales) = if double_quant {
            (blocks.div_ceil(4), 257 + blocks.div_ceil(NESTED_BLOCK))
        } else {
            (0, blocks)
        };
        4 * (elements.div_ceil(CODES) + codes + TABLE.len() + scales)
    }

    /// Elements of the largest dense copy that a product makes of a weight in [parts](crate::FrozenWeight::in_parts).
    pub fn part_elements(shape: [usize; 2], most: usize) -> usize {
        let [d_out, d_in] = shape;
        part_rows(shape, most).min(d_out) * d_in
    }

    /// The values, row-major.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape[0] * self.shape[1]];
        for (block, out) in values.chunks_mut(BLOCK).enumerate() {
            let scale = self.scales.of_block(block);
            let table = TABLE.map(|value| round(value * scale, self.rounding));
            let codes = &self.codes[block * BLOCK / 2..];
            for (out, codes) in out.chunks_mut(2).zip(codes) {
                let both = [
                    table[usize::from(codes >> 4)],
                    table[usize::from(codes & 15)],
                ];
                out.copy_from_slice(&both[..out.len()]);
            }
        }
        values
    }

    pub(crate) fn layout(&self, dtype: FloatDType) -> Nf4Layout {
        Nf4Layout {
            shape: self.shape,
            rounding: self.rounding,
            dtype,
            double_quant: matches!(self.scales, Nf4Scales::Nested { .. }),
            part: usize::MAX,
        }
    }

    /// The codes of [`Nf4Layout`].
    pub(crate) fn code_words(&self) -> Vec<u32> {
        let mut all = words(&self.codes);
        if let Nf4Scales::Nested { codes, .. } = &self.scales {
            all.extend(words(codes));
        }
        // Flex keeps the whole capacity.
        all.shrink_to_fit();
        all
    }

    /// The numbers of [`Nf4Layout`].
    pub(crate) fn scale_words(&self) -> Vec<f32> {
        let mut all = TABLE.to_vec();
        match &self.scales {
            Nf4Scales::Plain(scales) => all.extend(scales),
            Nf4Scales::Nested {
                map,
                absmax,
                offset,
                ..
            } => {
                all.extend(map.iter());
                all.push(*offset);
                all.extend(absmax);
            }
        }
        all.shrink_to_fit();
        all
    }

    /// `[d_out, d_in]`.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The type that values are rounded to.
    pub fn rounding(&self) -> FloatDType {
        self.rounding
    }

    /// Codes of elements, two to a byte.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Scales of blocks.
    pub fn scales(&self) -> &Nf4Scales {
        &self.scales
    }
}

impl Nf4Scales {
    fn of_block(&self, block: usize) -> f32 {
        match self {
            Self::Plain(scales) => scales[block],
            Self::Nested {
                codes,
                map,
                absmax,
                offset,
            } => map[usize::from(codes[block])] * absmax[block / NESTED_BLOCK] + offset,
        }
    }
}

/// Bytes in words, the first in the lowest bits, padded with zeros.
fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |bytes: &[u8]| {
        let bytes = bytes.iter().rev();
        bytes.fold(0, |word, byte| word << 8 | u32::from(*byte))
    };
    bytes.chunks(4).map(word).collect()
}

/// The nearest representable value of a type.
pub(crate) fn round(value: f32, dtype: FloatDType) -> f32 {
    match dtype {
        FloatDType::F16 => f16::from_f32(value).to_f32(),
        FloatDType::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Writes the codes of a block and returns its scale.
fn quantize_block(values: &[f32], codes: &mut [u8]) -> f32 {
    let mut scale = values
        .iter()
        .fold(0f32, |most, value| most.max(value.abs()));
    let divisor = scale.max(SMALLEST);
    let normal = |value: f32| {
        // bitsandbytes divides in a last block that is not full, and stores its raised scale.
        let normal = if values.len() == BLOCK {
            value * (1.0 / divisor)
        } else {
            value / divisor
        };
        normal.clamp(-1.0, 1.0)
    };
    if values.len() < BLOCK {
        scale = divisor;
    }
    for (code, pair) in codes.iter_mut().zip(values.chunks(2)) {
        let second = pair.get(1).copied().map_or(0.0, normal);
        *code = code_of(normal(pair[0])) << 4 | code_of(second);
    }
    scale
}

/// The code of the nearest value, the smaller one of two that are equally near.
fn code_of(normal: f32) -> u8 {
    let bounds = TABLE.windows(2).map(|pair| f32::midpoint(pair[0], pair[1]));
    bounds.map(|bound| u8::from(normal > bound)).sum()
}

/// Scales in 8 bits.
fn nested(scales: &[f32]) -> Nf4Scales {
    let sum: f64 = scales.iter().copied().map(f64::from).sum();
    let offset = (sum / scales.len().max(1) as f64) as f32;
    let map = dynamic_map();
    let mut codes = Vec::with_capacity(scales.len());
    let mut absmax = Vec::with_capacity(scales.len().div_ceil(NESTED_BLOCK));
    for block in scales.chunks(NESTED_BLOCK) {
        let centred: Vec<f32> = block.iter().map(|scale| scale - offset).collect();
        let most = centred
            .iter()
            .fold(0f32, |most, value| most.max(value.abs()));
        let inverse = if most > 0.0 { 1.0 / most } else { 0.0 };
        codes.extend(centred.iter().map(|value| nearest(&map, value * inverse)));
        absmax.push(most);
    }
    Nf4Scales::Nested {
        codes,
        map,
        absmax,
        offset,
    }
}

fn nearest(map: &[f32; 256], value: f32) -> u8 {
    let upper = map.partition_point(|known| *known < value).clamp(1, 255);
    let nearer_below = value - map[upper - 1] <= map[upper] - value;
    (upper - usize::from(nearer_below)) as u8
}

/// bitsandbytes' values of signed 8-bit codes, whose precision is highest around zero (Dettmers et al. 2022, arXiv
/// 2110.02861, section 2.2): 2^i means between tenths, times 10^(i - 6).
fn dynamic_map() -> Box<[f32; 256]> {
    let mut map = vec![0.0, 1.0];
    for exponent in 0..7 {
        let means = 1 << exponent;
        let step = 0.9 / f64::from(means);
        let boundary = |at: i32| (0.1 + step * f64::from(at)) as f32;
        let power = 10f64.powi(exponent - 6);
        for at in 0..means {
            let mean = f64::from(f32::midpoint(boundary(at), boundary(at + 1)));
            map.push((power * mean) as f32);
            map.push((-power * mean) as f32);
        }
    }
    map.sort_by(f32::total_cmp);
    let mut all = Box::new([0.0; 256]);
    all.copy_from_slice(&map);
    all
}

#[cfg(test)]
mod tests {
    use burn::tensor::FloatDType;

    use super::{Nf4, Nf4Scales, words};

    #[test]
    fn words_begin_with_the_first_byte_and_end_with_zeros() {
        assert_eq!(words(&[1, 2, 3, 4, 5]), [0x0403_0201, 5]);
    }

    /// Benchmarks depend on it: a cache or a branch must not learn them.
    #[test]
    fn random_weights_have_all_codes() {
        let weight = Nf4::random([64, 64], FloatDType::F32, false);
        assert!((0..=255).all(|pair| weight.codes().contains(&pair)));
        assert_eq!(weight.scales(), &Nf4Scales::Plain(vec![0.05; 64]));
    }

    #[test]
    fn words_take_the_bytes_that_are_planned() {
        for double_quant in [false, true] {
            for shape in [[64, 64], [7, 13], [130, 257]] {
                let weight = Nf4::random(shape, FloatDType::F32, double_quant);
                let (codes, scales) = (weight.code_words(), weight.scale_words());
                let planned = Nf4::device_bytes(shape, double_quant);
                assert_eq!(
                    4 * (codes.capacity() + scales.capacity()),
                    planned,
                    "{shape:?}"
                );
            }
        }
    }
}
