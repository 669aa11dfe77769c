use safetensors::Dtype;

use super::{
    parts::{Parts, bits, count, whole},
    values::{Codes, Grid, Groups, Packed, Quantized, grid},
};
use crate::checkpoint::TensorDtype;

/// Place of each of eight codes in a word of AWQ.
const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// bitsandbytes multiplies int8 codes and scales with it.
const INT8_FACTOR: f32 = 1.0 / 127.0;

impl<'a> Parts<'a> {
    /// Floats of 8 bits, with a scale for the weight, for each row or for each block.
    pub(super) fn fp8(&self, shape: [usize; 2], bytes: &'a [u8]) -> Result<Quantized<'a>, String> {
        let endings = ["weight_scale_inv", "weight_scale"];
        let ending = endings
            .into_iter()
            .find(|ending| self.find(ending).is_some());
        let ending = ending.ok_or("`weight_scale` is missing")?;
        let (groups, scales, dtype) = self.scales(ending, shape)?;
        Ok(Quantized {
            shape,
            codes: Codes::Fp8(bytes),
            groups,
            scales,
            zeros: None,
            factor: 1.0,
            dtype,
        })
    }

    /// Integers of 8 bits, by bitsandbytes with a scale for each row, or by compressed-tensors.
    pub(super) fn int8(&self, shape: [usize; 2], bytes: &'a [u8]) -> Result<Quantized<'a>, String> {
        let is_bitsandbytes = self.find("SCB").is_some();
        if !is_bitsandbytes && self.find("weight_zero_point").is_some() {
            return Err("int8 with zero points is not read".to_owned());
        }
        let ending = if is_bitsandbytes {
            "SCB"
        } else {
            "weight_scale"
        };
        let (groups, scales, dtype) = self.scales(ending, shape)?;
        Ok(Quantized {
            shape,
            codes: Codes::Int8(bytes),
            groups,
            scales,
            zeros: None,
            factor: if is_bitsandbytes { INT8_FACTOR } else { 1.0 },
            dtype,
        })
    }

    /// Scales of a weight, of its rows, of groups of columns in each row, or of blocks.
    fn scales(
        &self,
        ending: &str,
        [d_out, d_in]: [usize; 2],
    ) -> Result<(Groups, Grid, TensorDtype), String> {
        let found = self.find(ending);
        let (info, _) = found.ok_or_else(|| format!("`{ending}` is missing"))?;
        let [rows_each, columns_each] = self.block.unwrap_or([d_out, d_in]);
        let blocks = [
            d_out.div_ceil(rows_each.max(1)),
            d_in.div_ceil(columns_each.max(1)),
        ];
        let (rows, row_stride, size) = match info.shape[..] {
            [] | [1] | [1, 1] => (d_out.max(1), 0, d_in),
            [rows] if rows == d_out => (1, 1, d_in),
            [rows, groups] if rows == d_out => (1, groups, whole(d_in, groups, ending)?),
            ref found if found == blocks => (rows_each, blocks[1], columns_each),
            ref found => {
                return Err(format!(
                    "`{ending}` has the shape {found:?}: not that of a scale for [{d_out}, {d_in}], for each row, each \
                     group of columns or each block of [{rows_each}, {columns_each}]"
                ));
            }
        };
        let (values, dtype) = self.floats(ending, count(info))?;
        let scales = Grid {
            values,
            rows,
            strides: [row_stride, 1],
        };
        Ok((Groups::Of(size.max(1)), scales, dtype))
    }

    /// compressed-tensors' packed integers: each row in words, low bits first, with half of their range added.
    pub(super) fn packed(&self, shape: [usize; 2]) -> Result<Quantized<'a>, String> {
        let [d_out, d_in] = shape;
        let (stored, bytes) = self.sized("weight_shape", &[Dtype::I64, Dtype::I32], 2)?;
        let written: Vec<i64> = if stored.dtype == Dtype::I64 {
            let (words, _) = bytes.as_chunks();
            words.iter().map(|word| i64::from_le_bytes(*word)).collect()
        } else {
            let (words, _) = bytes.as_chunks();
            let words = words.iter().map(|word| i32::from_le_bytes(*word));
            words.map(i64::from).collect()
        };
        if written != shape.map(|size| size as i64) {
            return Err(format!("`weight_shape` is {written:?}, not {shape:?}"));
        }
        let (info, words) = self
            .find("weight_packed")
            .ok_or("`weight_packed` is missing")?;
        let &[rows, width] = &info.shape[..] else {
            return Err("`weight_packed` is no matrix".to_owned());
        };
        if rows != d_out || info.dtype != Dtype::I32 {
            return Err(format!(
                "`weight_packed` is {} {:?}",
                info.dtype, info.shape
            ));
        }
        let bits = [4, 8]
            .into_iter()
            .find(|bits| d_in.div_ceil(32 / bits) == width);
        let bits =
            bits.ok_or_else(|| format!("{d_in} codes of 4 or 8 bits do not fill {width} words"))?;
        let (mut groups, scales, dtype) = self.scales("weight_scale", shape)?;
        let count = scales.values.len() / d_out.max(1);
        if self.find("weight_g_idx").is_some() {
            groups = self.listed("weight_g_idx", d_in, count)?;
        }
        let offset = (1 << (bits - 1)) as f32;
        let zeros = if self.find("weight_zero_point").is_some() {
            let words = d_out.div_ceil(32 / bits) * count;
            let (_, words) = self.sized("weight_zero_point", &[Dtype::I32], words)?;
            let packed = Packed {
                words,
                width: count,
                bits,
                down: true,
                order: None,
            };
            Some(grid([d_out, count], |row, group| {
                packed.get(row, group) - offset
            }))
        } else {
            None
        };
        Ok(Quantized {
            shape,
            codes: Codes::Packed {
                packed: Packed {
                    words,
                    width,
                    bits,
                    down: false,
                    order: None,
                },
                transposed: false,
                offset,
            },
            groups,
            scales,
            zeros,
            factor: 1.0,
            dtype,
        })
    }

    /// GPTQ's and AWQ's integers, which are stored as `[d_in, d_out]`: GPTQ's words have codes of one column, AWQ's those
    /// of one row.
    pub(super) fn transposed(&self, shape: [usize; 2]) -> Result<Quantized<'a>, String> {
        let [d_out, d_in] = shape;
        let (info, words) = self.find("qweight").ok_or("`qweight` is missing")?;
        let &[rows, width] = &info.shape[..] else {
            return Err("`qweight` is no matrix".to_owned());
        };
        if info.dtype != Dtype::I32 {
            return Err(format!("`qweight` is {}", info.dtype));
        }
        let is_awq = rows == d_in;
        let (bits, order) = if is_awq {
            (bits(d_out, width)?, Some(AWQ_ORDER))
        } else if width == d_out {
            (bits(d_in, rows)?, None)
        } else {
            return Err(format!(
                "`qweight` is {:?}, which is not of {shape:?}",
                info.shape
            ));
        };
        if is_awq && bits != 4 {
            return Err(format!("AWQ with {bits} bits is not read"));
        }
        let (info, _) = self.find("scales").ok_or("`scales` is missing")?;
        let count = whole(count(info), d_out, "scales")?;
        let (values, dtype) = self.floats("scales", count * d_out)?;
        let width_of_zeros = d_out.div_ceil(32 / bits);
        let zeros = self
            .sized("qzeros", &[Dtype::I32], count * width_of_zeros)?
            .1;
        let zeros = Packed {
            words: zeros,
            width: width_of_zeros,
            bits,
            down: false,
            order,
        };
        // GPTQ stores them less one.
        let missing = if is_awq { 0.0 } else { 1.0 };
        let zeros = grid([d_out, count], |row, group| zeros.get(group, row) + missing);
        let groups = match self.find("g_idx") {
            Some(_) => self.listed("g_idx", d_in, count)?,
            None => Groups::Of(whole(d_in, count, "scales")?),
        };
        Ok(Quantized {
            shape,
            codes: Codes::Packed {
                packed: Packed {
                    words,
                    width,
                    bits,
                    down: !is_awq,
                    order,
                },
                transposed: true,
                offset: 0.0,
            },
            groups,
            scales: Grid {
                values,
                rows: 1,
                strides: [1, d_out],
            },
            zeros: Some(zeros),
            factor: 1.0,
            dtype,
        })
    }
}
