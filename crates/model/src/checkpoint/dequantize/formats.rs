use safetensors::Dtype;

use super::{
    parts::{Parts, width_of_codes},
    values::{Codes, Floats, Grid, Groups, Packed, Quantized},
};

/// Place of each of eight codes in a word of AWQ.
const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// bitsandbytes multiplies int8 codes and scales with it.
const INT8_FACTOR: f32 = 1.0 / 127.0;

impl<'a> Parts<'a> {
    /// Floats of 8 bits, with a scale for the weight, for each row or for each block.
    pub(super) fn fp8(&self, shape: [usize; 2], bytes: &'a [u8]) -> Result<Quantized<'a>, String> {
        let is_inverse = self.find("weight_scale").is_none();
        let ending = if is_inverse {
            "weight_scale_inv"
        } else {
            "weight_scale"
        };
        self.of_bytes(shape, Codes::Fp8(bytes), ending, 1.0)
    }

    /// Integers of 8 bits, by bitsandbytes with a scale for each row, or by compressed-tensors.
    pub(super) fn int8(&self, shape: [usize; 2], bytes: &'a [u8]) -> Result<Quantized<'a>, String> {
        if self.find("weight_zero_point").is_some() {
            return Err("int8 with zero points is not read".to_owned());
        }
        let codes = Codes::Int8(bytes);
        if self.find("SCB").is_none() {
            return self.of_bytes(shape, codes, "weight_scale", 1.0);
        }
        match self.find("weight_format") {
            Some((_, format)) if format != [0] => Err(format!(
                "`weight_format` is {format:?}, not 0, which is row after row"
            )),
            _ => self.of_bytes(shape, codes, "SCB", INT8_FACTOR),
        }
    }

    fn of_bytes(
        &self,
        shape: [usize; 2],
        codes: Codes<'a>,
        ending: &str,
        factor: f32,
    ) -> Result<Quantized<'a>, String> {
        let (groups, scales) = self.scales(ending, shape)?;
        Ok(Quantized {
            shape,
            codes,
            groups,
            dtype: scales.values.dtype,
            scales,
            zeros: None,
            factor,
        })
    }

    /// Scales of a weight, of its rows, of groups of columns in each row, or of blocks.
    fn scales(
        &self,
        ending: &str,
        [d_out, d_in]: [usize; 2],
    ) -> Result<(Groups<'a>, Grid<Floats<'a>>), String> {
        let (info, _) = self.get(ending)?;
        let block = self.stored.block;
        let (rows, groups, size) = match info.shape[..] {
            [] | [1] | [1, 1] => (d_out, 1, d_in),
            [rows] if rows == d_out => (1, 1, d_in),
            [rows, groups] if rows == d_out => (1, groups, self.group_size(d_in, groups)?),
            ref found => match block {
                Some([rows, columns])
                    if found == [d_out.div_ceil(rows), d_in.div_ceil(columns)] =>
                {
                    (rows, found[1], columns)
                }
                _ => {
                    return Err(format!(
                        "`{ending}` has the shape {found:?}: not that of a scale for [{d_out}, {d_in}], for each row, \
                         each group of columns or each block{}",
                        block.map_or_else(String::new, |block| format!(" of {block:?}"))
                    ));
                }
            },
        };
        let scales = Grid {
            values: self.floats(ending, &info.shape)?,
            rows,
            groups,
            transposed: false,
        };
        Ok((Groups::Of(size), scales))
    }

    /// compressed-tensors' packed integers: each row in words, low bits first, with half of their range added.
    pub(super) fn packed(&self, shape: [usize; 2]) -> Result<Quantized<'a>, String> {
        let [d_out, d_in] = shape;
        let written: Vec<i64> = match self.get("weight_shape")? {
            (info, bytes) if info.dtype == Dtype::I64 => {
                let (words, _) = bytes.as_chunks();
                words.iter().map(|word| i64::from_le_bytes(*word)).collect()
            }
            _ => {
                let bytes = self.shaped("weight_shape", &[Dtype::I32], &[2])?;
                let (words, _) = bytes.as_chunks();
                let words = words.iter().map(|word| i32::from_le_bytes(*word));
                words.map(i64::from).collect()
            }
        };
        if written != shape.map(|size| size as i64) {
            return Err(format!("`weight_shape` is {written:?}, not {shape:?}"));
        }
        let (info, _) = self.get("weight_packed")?;
        let width = info.shape.get(1).copied().unwrap_or(0);
        let bits = [4, 8]
            .into_iter()
            .find(|bits| d_in.div_ceil(32 / bits) == width);
        let bits = bits.ok_or_else(|| {
            let found = &info.shape;
            format!("`weight_packed` is {found:?}: {d_in} codes of 4 or 8 bits do not fill a row")
        })?;
        let words = self.shaped("weight_packed", &[Dtype::I32], &[d_out, width])?;
        let (mut groups, scales) = self.scales("weight_scale", shape)?;
        if self.find("weight_g_idx").is_some() || self.stored.has_listed_groups {
            groups = self.listed("weight_g_idx", d_in, scales.groups)?;
        }
        let packed = |words: &'a [u8], width, down| Packed {
            words: words.into(),
            width,
            bits,
            down,
            order: None,
            offset: (1 << (bits - 1)) as f32,
        };
        let has_zeros = self.find("weight_zero_point").is_some();
        let zeros = if has_zeros || self.stored.has_zero_points {
            if scales.rows != 1 {
                return Err("it has zero points without a scale for each row".to_owned());
            }
            let words = [d_out.div_ceil(32 / bits), scales.groups];
            let words = self.shaped("weight_zero_point", &[Dtype::I32], &words)?;
            Some(Grid {
                values: packed(words, scales.groups, true),
                rows: 1,
                groups: scales.groups,
                transposed: false,
            })
        } else {
            None
        };
        Ok(Quantized {
            shape,
            codes: Codes::Rows(packed(words, width, false)),
            groups,
            dtype: scales.values.dtype,
            scales,
            zeros,
            factor: 1.0,
        })
    }

    /// GPTQ's and AWQ's integers, which are stored as `[d_in, d_out]`: GPTQ's words have codes of one column, AWQ's those
    /// of one row.
    pub(super) fn gptq_or_awq(&self, shape: [usize; 2]) -> Result<Quantized<'a>, String> {
        let [d_out, d_in] = shape;
        let (info, words) = self.get("qweight")?;
        let (bits, order) = match info.shape[..] {
            [rows, width] if rows == d_in => (width_of_codes(d_out, width)?, Some(AWQ_ORDER)),
            [rows, width] if width == d_out => (width_of_codes(d_in, rows)?, None),
            ref found => return Err(format!("`qweight` is {found:?}, which is not of {shape:?}")),
        };
        if info.dtype != Dtype::I32 || (order.is_some() && bits != 4) {
            return Err(format!("`qweight` is {} {:?}", info.dtype, info.shape));
        }
        let (scales, _) = self.get("scales")?;
        let count = scales.shape.first().copied().unwrap_or(0);
        let values = self.floats("scales", &[count, d_out])?;
        let width = d_out.div_ceil(32 / bits);
        let zeros = self.shaped("qzeros", &[Dtype::I32], &[count, width])?;
        let packed = |words, width, down| Packed {
            words,
            width,
            bits,
            down,
            order,
            offset: 0.0,
        };
        let zeros = if order.is_some() {
            zeros.into()
        } else {
            with_ones(zeros, bits).into()
        };
        let groups = if self.find("g_idx").is_some() || self.stored.has_listed_groups {
            self.listed("g_idx", d_in, count)?
        } else {
            Groups::Of(self.group_size(d_in, count)?)
        };
        Ok(Quantized {
            shape,
            codes: Codes::Columns(packed(words.into(), info.shape[1], order.is_none())),
            groups,
            dtype: values.dtype,
            scales: Grid {
                values,
                rows: 1,
                groups: count,
                transposed: true,
            },
            zeros: Some(Grid {
                values: packed(zeros, width, false),
                rows: 1,
                groups: count,
                transposed: true,
            }),
            factor: 1.0,
        })
    }
}

/// Zero points as GPTQ computes with them: it stores each word less a word of ones, so that a zero point of 0 takes one
/// from its neighbour.
fn with_ones(words: &[u8], bits: usize) -> Vec<u8> {
    let ones: u32 = if bits == 4 { 0x1111_1111 } else { 0x0101_0101 };
    let (words, _) = words.as_chunks();
    let words = words.iter().map(|word| u32::from_le_bytes(*word));
    words
        .flat_map(|word| word.wrapping_add(ones).to_le_bytes())
        .collect()
}
