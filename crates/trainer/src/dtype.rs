use burn::tensor::{Device, FloatDType};
use loraloom_config::DtypeChoice;
use loraloom_model::{Checkpoint, TensorDtype};

use crate::TrainerError;

/// The type of frozen weights and activations on a device. `auto` is `float32` on the CPU, whose
/// matrix products are fastest in it, and the checkpoint's type where the device has it.
pub(crate) fn resolve_dtype(
    choice: DtypeChoice,
    device: &Device,
    checkpoint: &Checkpoint,
) -> Result<FloatDType, TrainerError> {
    resolve_stored(choice, device, checkpoint.dtype())
}

/// The same for weights that are, or would be, stored in a type.
pub(crate) fn resolve_stored(
    choice: DtypeChoice,
    device: &Device,
    stored: Option<TensorDtype>,
) -> Result<FloatDType, TrainerError> {
    let cpu = *device == Device::flex();
    resolve_for(choice, cpu, |dtype| device.supports_dtype(dtype), stored)
}

/// The same for a device of which only this is known.
pub(crate) fn resolve_for(
    choice: DtypeChoice,
    cpu: bool,
    supports: impl Fn(FloatDType) -> bool,
    stored: Option<TensorDtype>,
) -> Result<FloatDType, TrainerError> {
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
            return Ok(if cpu || !supports(stored) {
                FloatDType::F32
            } else {
                stored
            });
        }
    };
    if supports(dtype) {
        Ok(dtype)
    } else {
        Err(TrainerError::UnsupportedDtype { dtype: name })
    }
}
