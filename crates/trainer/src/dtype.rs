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
            let cpu = *device == Device::flex();
            return Ok(if cpu || !device.supports_dtype(stored) {
                FloatDType::F32
            } else {
                stored
            });
        }
    };
    if device.supports_dtype(dtype) {
        Ok(dtype)
    } else {
        Err(TrainerError::UnsupportedDtype { dtype: name })
    }
}

/// One type for all stages; `auto` is `float32` where they would choose different ones.
pub(crate) fn shared_dtype(
    choice: DtypeChoice,
    devices: &[Device],
    checkpoint: &Checkpoint,
) -> Result<FloatDType, TrainerError> {
    let chosen = devices
        .iter()
        .map(|device| resolve_dtype(choice, device, checkpoint));
    let mut chosen = chosen.collect::<Result<Vec<_>, _>>()?;
    chosen.dedup();
    match chosen[..] {
        [dtype] => Ok(dtype),
        _ => Ok(FloatDType::F32),
    }
}
