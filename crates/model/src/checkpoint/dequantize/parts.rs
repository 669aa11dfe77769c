use safetensors::{Dtype, tensor::TensorInfo};

use super::values::Groups;
use crate::checkpoint::{Checkpoint, HostTensor, TensorDtype};

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
    /// Rows and columns that share a scale, if there is one for each block.
    pub(super) block: Option<[usize; 2]>,
}

pub(super) type Part<'a> = (&'a TensorInfo, &'a [u8]);

impl<'a> Parts<'a> {
    pub(super) fn find(&self, ending: &str) -> Option<Part<'a>> {
        self.checkpoint.part(&format!("{}.{ending}", self.module))
    }

    /// A tensor of one of these types and this number of elements.
    pub(super) fn sized(
        &self,
        ending: &str,
        dtypes: &[Dtype],
        count: usize,
    ) -> Result<Part<'a>, String> {
        let found = self.find(ending);
        let (info, bytes) = found.ok_or_else(|| format!("`{ending}` is missing"))?;
        if !dtypes.contains(&info.dtype) {
            return Err(format!("`{ending}` is {}", info.dtype));
        }
        let elements: usize = info.shape.iter().product();
        if elements == count {
            return Ok((info, bytes));
        }
        Err(format!("`{ending}` has {elements} values, not {count}"))
    }

    /// Values in floating point, and their type.
    pub(super) fn floats(
        &self,
        ending: &str,
        count: usize,
    ) -> Result<(Vec<f32>, TensorDtype), String> {
        let floats = [Dtype::F32, Dtype::F16, Dtype::BF16];
        let (info, bytes) = self.sized(ending, &floats, count)?;
        let dtype = TensorDtype::from_safetensors(info.dtype);
        let dtype = dtype.ok_or_else(|| format!("`{ending}` is {}", info.dtype))?;
        let host = HostTensor {
            shape: &info.shape,
            dtype,
            bytes,
        };
        Ok((host.to_f32(), dtype))
    }

    /// The group of each column.
    pub(super) fn listed(
        &self,
        ending: &str,
        columns: usize,
        groups: usize,
    ) -> Result<Groups, String> {
        let (_, bytes) = self.sized(ending, &[Dtype::I32], columns)?;
        let (words, _) = bytes.as_chunks();
        let group = words.iter().map(|word| i32::from_le_bytes(*word));
        let listed = group.map(|group| usize::try_from(group).ok().filter(|one| *one < groups));
        let listed: Option<Vec<usize>> = listed.collect();
        let listed =
            listed.ok_or_else(|| format!("`{ending}` names a group that does not exist"))?;
        Ok(Groups::Listed(listed))
    }
}

/// Elements of a tensor.
pub(super) fn count(info: &TensorInfo) -> usize {
    info.shape.iter().product()
}

/// `a / b`, which must be whole.
pub(super) fn whole(a: usize, b: usize, what: &str) -> Result<usize, String> {
    if b > 0 && a > 0 && a.is_multiple_of(b) {
        return Ok(a / b);
    }
    Err(format!("{what}: {b} does not divide {a}"))
}

/// Width of the codes, which fill words in this number.
pub(super) fn bits(codes: usize, words: usize) -> Result<usize, String> {
    match (32 * words).checked_div(codes) {
        Some(bits @ (4 | 8)) if bits * codes == 32 * words => Ok(bits),
        _ => Err(format!(
            "{codes} codes of 4 or 8 bits do not fill {words} words"
        )),
    }
}
