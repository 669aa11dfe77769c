use std::fmt;

use burn::tensor::FloatDType;
use safetensors::Dtype;

/// Floating-point types that weights may be stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorDtype {
    /// 32-bit IEEE floats.
    Float32,
    /// 16-bit IEEE floats.
    Float16,
    /// 16-bit brain floats.
    Bfloat16,
}

impl TensorDtype {
    /// All of them, for messages.
    pub(crate) const NAMES: &str = "F32, F16, BF16";

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Float16 | Self::Bfloat16 => 2,
        }
    }

    /// From torch's name, such as `bfloat16` or `torch.bfloat16`.
    pub(crate) fn from_torch_name(name: &str) -> Option<Self> {
        match name.strip_prefix("torch.").unwrap_or(name) {
            "float32" | "float" => Some(Self::Float32),
            "float16" | "half" => Some(Self::Float16),
            "bfloat16" => Some(Self::Bfloat16),
            _ => None,
        }
    }

    /// Burn's.
    pub(crate) fn to_burn(self) -> FloatDType {
        match self {
            Self::Float32 => FloatDType::F32,
            Self::Float16 => FloatDType::F16,
            Self::Bfloat16 => FloatDType::BF16,
        }
    }

    /// The type in a safetensors header.
    pub(crate) fn to_safetensors(self) -> Dtype {
        match self {
            Self::Float32 => Dtype::F32,
            Self::Float16 => Dtype::F16,
            Self::Bfloat16 => Dtype::BF16,
        }
    }

    /// From the type in a safetensors header.
    pub(crate) fn from_safetensors(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::Float32),
            Dtype::F16 => Some(Self::Float16),
            Dtype::BF16 => Some(Self::Bfloat16),
            _ => None,
        }
    }
}

impl fmt::Display for TensorDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
        })
    }
}
