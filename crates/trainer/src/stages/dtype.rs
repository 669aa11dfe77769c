use burn::tensor::{Device, FloatDType};
use loraloom_config::DtypeChoice;
use loraloom_model::TensorDtype;

use crate::{TrainerError, error::Result};

/// The type of frozen weights and activations on a device, for weights that are stored as `stored`.
/// `auto` is `float32` on the CPU, whose matrix products are fastest in it, and the stored type where
/// the device has it.
///
/// # Errors
/// If the device lacks the type that was chosen.
pub fn resolve_dtype(
    choice: DtypeChoice,
    device: &Device,
    stored: Option<TensorDtype>,
) -> Result<FloatDType> {
    let cpu = *device == Device::flex();
    resolve_for(choice, cpu, |dtype| device.supports_dtype(dtype), stored)
}

/// [`resolve_dtype`] for a device that is described by `cpu` and `supports`.
pub(crate) fn resolve_for(
    choice: DtypeChoice,
    cpu: bool,
    supports: impl Fn(FloatDType) -> bool,
    stored: Option<TensorDtype>,
) -> Result<FloatDType> {
    let (dtype, name) = match choice {
        DtypeChoice::Float32 => (FloatDType::F32, "float32"),
        DtypeChoice::Bfloat16 => (FloatDType::BF16, "bfloat16"),
        DtypeChoice::Float16 => (FloatDType::F16, "float16"),
        DtypeChoice::Auto => {
            let stored = match stored {
                Some(TensorDtype::Bfloat16) => FloatDType::BF16,
                Some(TensorDtype::Float16) => FloatDType::F16,
                Some(TensorDtype::Float32) | None => FloatDType::F32,
            };
            let usable = !cpu && supports(stored);
            return Ok(if usable { stored } else { FloatDType::F32 });
        }
    };
    if !supports(dtype) {
        return Err(TrainerError::UnsupportedDtype { dtype: name });
    }
    Ok(dtype)
}
