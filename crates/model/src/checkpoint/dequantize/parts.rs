use safetensors::{Dtype, tensor::TensorInfo};

use super::values::{Floats, Groups};
use crate::{
    checkpoint::{Checkpoint, TensorDtype},
    config::StoredFormat,
};

/// Endings of the tensors that stand beside, or instead of, `X.weight`.
const PARTS: [&str; 14] = [
    "SCB",
    "g_idx",
    "input_scale",
    "input_zero_point",
    "qweight",
    "qzeros",
    "scales",
    "weight_format",
    "weight_g_idx",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_shape",
    "weight_zero_point",
];

/// The weight that a tensor belongs to, if it is one of the tensors beside a weight.
pub(crate) fn weight_of(name: &str) -> Option<String> {
    let (module, part) = name.rsplit_once('.')?;
    PARTS.contains(&part).then(|| format!("{module}.weight"))
}

/// The tensors of one linear layer.
pub(super) struct Parts<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) module: String,
    pub(super) stored: &'a StoredFormat,
}

pub(super) type Part<'a> = (&'a TensorInfo, &'a [u8]);

impl<'a> Parts<'a> {
    pub(super) fn find(&self, ending: &str) -> Option<Part<'a>> {
        self.checkpoint.part(&format!("{}.{ending}", self.module))
    }

    /// A tensor that must be there.
    pub(super) fn get(&self, ending: &str) -> Result<Part<'a>, String> {
        let found = self.find(ending);
        found.ok_or_else(|| format!("`{ending}` is missing"))
    }

    /// Bytes of a tensor of one of these types and this shape.
    pub(super) fn shaped(
        &self,
        ending: &str,
        dtypes: &[Dtype],
        shape: &[usize],
    ) -> Result<&'a [u8], String> {
        let (info, bytes) = self.get(ending)?;
        if !dtypes.contains(&info.dtype) || info.shape != shape {
            return Err(format!(
                "`{ending}` is {} {:?}, not {} {shape:?}",
                info.dtype,
                info.shape,
                dtypes.first().map(Dtype::to_string).unwrap_or_default()
            ));
        }
        Ok(bytes)
    }

    /// Values in floating point.
    pub(super) fn floats(&self, ending: &str, shape: &[usize]) -> Result<Floats<'a>, String> {
        let (info, bytes) = self.get(ending)?;
        match TensorDtype::from_safetensors(info.dtype) {
            Some(dtype) if info.shape == shape => Ok(Floats { bytes, dtype }),
            _ => Err(format!(
                "`{ending}` is {} {:?}, not {shape:?} of floats",
                info.dtype, info.shape
            )),
        }
    }

    /// The group of each column.
    pub(super) fn listed(
        &self,
        ending: &str,
        columns: usize,
        groups: usize,
    ) -> Result<Groups<'a>, String> {
        let bytes = self.shaped(ending, &[Dtype::I32], &[columns])?;
        let (words, _) = bytes.as_chunks();
        let exists = |word: &[u8; 4]| (u32::from_le_bytes(*word) as usize) < groups;
        if words.iter().all(exists) {
            return Ok(Groups::Listed(words));
        }
        Err(format!("`{ending}` names a group that does not exist"))
    }

    /// Columns of a group, given their number: of the sizes that the configuration names, or equal ones if it names none.
    pub(super) fn group_size(&self, columns: usize, groups: usize) -> Result<usize, String> {
        if groups == 1 {
            return Ok(columns);
        }
        let sizes = &self.stored.group_sizes;
        let fits = |size: &&usize| columns.div_ceil(**size) == groups;
        match sizes.iter().find(fits) {
            Some(size) => Ok(*size),
            None if sizes.is_empty() && groups > 0 && columns.is_multiple_of(groups) => {
                Ok(columns / groups)
            }
            None => Err(format!(
                "{columns} columns are not {groups} groups, with `group_size` {sizes:?}"
            )),
        }
    }
}

/// Width of the codes, which fill words in this number.
pub(super) fn width_of_codes(codes: usize, words: usize) -> Result<usize, String> {
    match (32 * words).checked_div(codes) {
        Some(bits @ (4 | 8)) if bits * codes == 32 * words => Ok(bits),
        _ => Err(format!(
            "{codes} codes of 4 or 8 bits do not fill {words} words"
        )),
    }
}
