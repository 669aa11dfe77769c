//! Weights in NF4 as bitsandbytes stores them: beside `X.weight` the tensors `X.weight.absmax`, `.quant_map`, with nested
//! scales `.nested_absmax` and `.nested_quant_map`, and JSON as bytes.

use batchlora::{NF4_BLOCK, NF4_NESTED_BLOCK, NF4_TABLE, Nf4, Nf4Scales};
use burn::tensor::FloatDType;
use safetensors::Dtype;
use serde::Deserialize;

use super::{dtype::TensorDtype, open::Checkpoint};
use crate::error::ModelError;

/// Ending of the tensor that holds the JSON.
const STATE: &str = "quant_state.bitsandbytes__nf4";
/// Endings of the tensors beside a quantised weight.
const PARTS: [&str; 5] = [
    "absmax",
    "quant_map",
    "nested_absmax",
    "nested_quant_map",
    STATE,
];

#[derive(Deserialize)]
struct State {
    quant_type: String,
    blocksize: usize,
    dtype: String,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

/// The weight that a tensor belongs to, if it is one of the tensors beside a weight.
pub(super) fn weight_of(name: &str) -> Option<&str> {
    let weight = |part: &&str| name.strip_suffix(part)?.strip_suffix('.');
    let mut found = PARTS.iter().filter_map(weight);
    found.next().or_else(|| {
        let (weight, _) = name.split_once(".quant_state.")?;
        Some(weight)
    })
}

/// A weight in NF4 in a memory-mapped file, with parts of the right sizes.
struct Stored<'a> {
    rounding: FloatDType,
    codes: &'a [u8],
    absmax: &'a [u8],
    nested: Option<Nested<'a>>,
}

struct Nested<'a> {
    map: Box<[f32; 256]>,
    absmax: &'a [u8],
    offset: f32,
}

impl Checkpoint {
    /// A weight `[d_out, d_in]` that is stored in NF4; `None` if it is not.
    ///
    /// # Errors
    /// [`ModelError::QuantState`] if it is stored in another quantised type, or its parts contradict each other.
    pub fn nf4(&self, name: &str, shape: [usize; 2]) -> Result<Option<Nf4>, ModelError> {
        let refused = |reason| self.refused(name, reason);
        let Some(stored) = self.quantized(name, shape).map_err(refused)? else {
            return Ok(None);
        };
        let scales = match stored.nested {
            Some(nested) => Nf4Scales::Nested {
                codes: stored.absmax.to_vec(),
                map: nested.map,
                absmax: floats(nested.absmax),
                offset: nested.offset,
            },
            None => Nf4Scales::Plain(floats(stored.absmax)),
        };
        let weight = Nf4::new(shape, stored.rounding, stored.codes.to_vec(), scales);
        let weight = weight.map_err(|error| refused(error.to_string()))?;
        Ok(Some(weight))
    }

    /// True if a weight is stored in NF4, from the headers.
    ///
    /// # Errors
    /// As [`nf4`](Self::nf4).
    pub(super) fn is_nf4(&self, name: &str, shape: &[usize]) -> Result<bool, ModelError> {
        let Ok(shape) = shape.try_into() else {
            return Ok(false);
        };
        let stored = self.quantized(name, shape);
        let stored = stored.map_err(|reason| self.refused(name, reason))?;
        Ok(stored.is_some())
    }

    fn quantized(&self, name: &str, shape: [usize; 2]) -> Result<Option<Stored<'_>>, String> {
        let part = |part: &str| {
            let (info, bytes) = self.part(&format!("{name}.{part}"))?;
            Some((info.dtype, bytes))
        };
        let Some((_, state)) = part(STATE) else {
            let mut parts = self
                .beginning(name)
                .filter(|part| weight_of(part) == Some(name));
            return match parts.next() {
                Some(part) => Err(format!("there is `{part}`, and no `{name}.{STATE}`")),
                None => Ok(None),
            };
        };
        let state: State = serde_json::from_slice(state)
            .map_err(|error| format!("`{STATE}` is not as bitsandbytes writes it: {error}"))?;
        let expect = |key: &str, found: String, expected: &str| {
            if found == expected {
                return Ok(());
            }
            Err(format!("`{key}` is {found}, not {expected}"))
        };
        expect("quant_type", state.quant_type, "nf4")?;
        let blocks = NF4_BLOCK.to_string();
        expect("blocksize", state.blocksize.to_string(), &blocks)?;
        expect("shape", format!("{:?}", state.shape), &format!("{shape:?}"))?;
        let dtype = TensorDtype::from_torch_name(&state.dtype);
        let dtype = dtype.ok_or_else(|| format!("`dtype` is {:?}", state.dtype))?;

        let sized = |ending: &str, dtype: Dtype, count: usize| {
            let (found, bytes) = part(ending).ok_or(format!("`{name}.{ending}` is missing"))?;
            expect(ending, found.to_string(), &dtype.to_string())?;
            let values = bytes.len() * 8 / dtype.bitsize();
            if values == count {
                return Ok(bytes);
            }
            Err(format!("`{ending}` has {values} values, not {count}"))
        };
        if floats(sized("quant_map", Dtype::F32, NF4_TABLE.len())?) != NF4_TABLE {
            return Err("`quant_map` is not that of NF4".to_owned());
        }
        let elements = shape[0] * shape[1];
        let blocks = elements.div_ceil(NF4_BLOCK);
        let is_nested = matches!(part("absmax"), Some((Dtype::U8, _)));
        let nested = if is_nested {
            let size = state.nested_blocksize.unwrap_or(0).to_string();
            expect("nested_blocksize", size, &NF4_NESTED_BLOCK.to_string())?;
            let map = floats(sized("nested_quant_map", Dtype::F32, 256)?);
            let map = map.into_boxed_slice().try_into();
            let groups = blocks.div_ceil(NF4_NESTED_BLOCK);
            Some(Nested {
                map: map.map_err(|_| "`nested_quant_map` has not 256 values")?,
                absmax: sized("nested_absmax", Dtype::F32, groups)?,
                offset: state.nested_offset.ok_or("`nested_offset` is missing")?,
            })
        } else {
            None
        };
        let of_scales = if is_nested { Dtype::U8 } else { Dtype::F32 };
        // The bytes may be stored as another type.
        let (_, codes) = self.part(name).ok_or("the weight is missing")?;
        if codes.len() != elements.div_ceil(2) {
            return Err(format!(
                "it has {} bytes of codes, not {}",
                codes.len(),
                elements.div_ceil(2)
            ));
        }
        Ok(Some(Stored {
            rounding: dtype.to_burn(),
            codes,
            absmax: sized("absmax", of_scales, blocks)?,
            nested,
        }))
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}
