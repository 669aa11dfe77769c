use burn::tensor::{Device, FloatDType};
use loraloom_config::{DeviceChoice, DtypeChoice, PipelineConfig, StageLocation};
use loraloom_model::TensorDtype;

use crate::{TrainerError, error::Result};

/// The type of frozen weights and activations on a device, for weights that are stored as `stored`. `auto` is
/// `float32` on the CPU, whose matrix products are fastest in it, and otherwise the stored type if the device
/// supports it.
///
/// # Errors
/// If the device does not support the configured type.
pub fn resolve_dtype(
    choice: DtypeChoice,
    device: &Device,
    stored: Option<TensorDtype>,
) -> Result<FloatDType> {
    let cpu = *device == Device::flex();
    resolve_for(choice, cpu, |dtype| device.supports_dtype(dtype), stored)
}

/// [`resolve_dtype`] for a device given by `cpu` and `supports`.
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

/// The type of frozen weights and activations, and a note if it is a guess. Opens no device.
pub(crate) fn planned_dtype(
    choice: DtypeChoice,
    pipeline: &PipelineConfig,
    stored: Option<TensorDtype>,
) -> (TensorDtype, Option<String>) {
    let cpu = StageLocation::Device(DeviceChoice::Cpu);
    match choice {
        DtypeChoice::Float32 => (TensorDtype::Float32, None),
        DtypeChoice::Bfloat16 => (TensorDtype::Bfloat16, None),
        DtypeChoice::Float16 => (TensorDtype::Float16, None),
        DtypeChoice::Auto if pipeline.stages.contains(&cpu) => (TensorDtype::Float32, None),
        DtypeChoice::Auto => match stored {
            None | Some(TensorDtype::Float32) => (TensorDtype::Float32, None),
            Some(dtype) => {
                let note = format!(
                    "`dtype: auto` is assumed to be {dtype}, the type of the stored weights; on the \
                     CPU, or on a device without it, it is float32, and twice as large"
                );
                (dtype, Some(note))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use loraloom_config::{
        BalanceChoice, DeviceChoice, DtypeChoice, PipelineConfig, Schedule, StageLocation,
    };
    use loraloom_model::TensorDtype;

    use super::planned_dtype;

    #[test]
    fn auto_is_what_is_stored_but_on_the_cpu() {
        let found = |choice, devices: &[DeviceChoice], stored| {
            let pipeline = PipelineConfig {
                stages: devices.iter().copied().map(StageLocation::Device).collect(),
                balance: BalanceChoice::Auto,
                schedule: Schedule::LoraPp,
                microbatches: 1,
                extra_warmup: 0,
                token_file: None,
                step_deadline: 1.0,
            };
            let (dtype, note) = planned_dtype(choice, &pipeline, stored);
            (dtype, note.is_some())
        };
        let (gpu, cpu) = (DeviceChoice::Cuda(None), DeviceChoice::Cpu);
        let half = Some(TensorDtype::Bfloat16);
        let auto = DtypeChoice::Auto;
        assert_eq!(found(auto, &[gpu], half), (TensorDtype::Bfloat16, true));
        assert_eq!(
            found(auto, &[gpu, cpu], half),
            (TensorDtype::Float32, false)
        );
        assert_eq!(found(auto, &[gpu], None), (TensorDtype::Float32, false));
        assert_eq!(
            found(DtypeChoice::Float16, &[cpu], half),
            (TensorDtype::Float16, false)
        );
    }
}
