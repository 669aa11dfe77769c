use burn::{
    backend::DispatchDevice,
    tensor::{DType, Device, FloatDType, Tensor, TensorData},
};

use crate::{
    AdapterBank, AdapterState, BatchLoraError, DropoutDraw, LoraSpec, Segment, Segments,
    dropout::philox, seed_gradient,
};

const ROWS: usize = 40;
const SHAPE: [usize; 2] = [64, 48];
/// Of the largest element. Devices may multiply `float32` in a shorter type, with 10 bits.
const TOLERANCE: f32 = 0.02;

/// Sees the operator work on a device: forward and backward of a small batch of two adapters with
/// activations of this type, compared with the CPU's. Returns the largest difference, as a share of
/// the largest element.
///
/// # Errors
/// [`BatchLoraError::Unavailable`] if the device does not have the type,
/// [`BatchLoraError::Launch`] if a kernel fails or computes something else.
///
/// # Panics
/// Burn panics where a device cannot be opened at all.
pub fn check_device(device: &Device, dtype: FloatDType) -> Result<f32, BatchLoraError> {
    let name = format!("{device:?}");
    if !device.supports_dtype(dtype) {
        return Err(BatchLoraError::Unavailable {
            device: name,
            lacks: format!("{:?}", DType::from(dtype)),
        });
    }
    let launch = |reason: String| BatchLoraError::Launch {
        device: name.clone(),
        reason,
    };
    let found = run(device, dtype, &launch)?;
    let expected = run(&Device::flex(), dtype, &launch)?;
    let mut worst = 0f32;
    for (what, (found, expected)) in ["h", "dx", "da", "db"]
        .into_iter()
        .zip(found.iter().zip(&expected))
    {
        let largest = expected
            .iter()
            .fold(0f32, |largest, value| largest.max(value.abs()));
        let pairs = found.iter().zip(expected);
        let error = pairs.fold(0f32, |error, (found, expected)| {
            let difference = (found - expected).abs();
            // A number that is none is as far off as can be.
            if difference.is_nan() {
                f32::INFINITY
            } else {
                error.max(difference)
            }
        });
        if found.len() != expected.len() || error > TOLERANCE * largest {
            return Err(launch(format!(
                "{what} is off by {error:e} where the largest element is {largest:e}"
            )));
        }
        worst = worst.max(error / largest);
    }
    Ok(worst)
}

/// Output, and the gradients of input, A and B.
fn run(
    device: &Device,
    dtype: FloatDType,
    launch: &impl Fn(String) -> BatchLoraError,
) -> Result<[Vec<f32>; 4], BatchLoraError> {
    let device = &device.clone().without_autodiff();
    let mut bank = AdapterBank::new(SHAPE[0], SHAPE[1], 0, device);
    for (slot, r) in [3, 20].into_iter().enumerate() {
        let spec = LoraSpec::new(r, 16.0).with_lora_dropout(0.1);
        let mut state = AdapterState::init(spec, SHAPE, slot as u64, 0, device)?;
        state.weights.b = uniform([r, SHAPE[1]], slot as u32, device);
        bank.push(Some(state))?;
    }
    let segment = |rows, slot| Segment { rows, slot };
    let segments = Segments::new(ROWS, vec![segment(0..5, 1), segment(6..ROWS, 0)])?;
    let draws = [DropoutDraw { seed: 1, step: 1 }; 2];
    let Some(lora) = bank.attach(&segments, Some(&draws))? else {
        return Err(launch("the bank lost its adapters".into()));
    };
    let lora = lora.require_grad();
    let x = uniform([ROWS, SHAPE[0]], 2, device).cast(dtype);
    let x = x.autodiff().require_grad();
    let weight = uniform(SHAPE, 3, device).cast(dtype);
    let h = lora.forward(x.clone(), weight)?;
    let gradient = uniform([ROWS, SHAPE[1]], 4, device).cast(dtype);
    let mut gradients = seed_gradient(h.clone(), gradient).backward();
    let dx = x.grad(&gradients);
    let lora = lora.take_gradient(&mut gradients);
    let Some((dx, lora)) = dx.zip(lora) else {
        return Err(launch("backward reached no leaf".into()));
    };
    let read = |tensor: Tensor<2>| {
        let data = tensor.cast(FloatDType::F32).try_into_data();
        let data = data.map_err(|error| launch(format!("{error:?}")))?;
        let values = data.try_into_vec::<f32>();
        values.map_err(|error| launch(format!("{error:?}")))
    };
    Ok([
        read(h.without_autodiff())?,
        read(dx)?,
        read(lora.a)?,
        read(lora.b)?,
    ])
}

/// Uniform in ±1.
fn uniform(shape: [usize; 2], seed: u32, device: &Device) -> Tensor<2> {
    let words = (0..).flat_map(|block| philox([block, seed, 0, 0], [0; 2]));
    let values = words.map(|word| word as f32 / 2f32.powi(31) - 1.0);
    let values: Vec<f32> = values.take(shape[0] * shape[1]).collect();
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

/// What multiplies matrices on a device, in words: `cuBLAS 13.1`, or Burn's kernels and why cuBLAS is
/// not in use. Opens the device.
pub fn products(device: &Device) -> String {
    match device.clone().without_autodiff().as_dispatch() {
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => crate::kernels::products(device),
        _ => "gemm".to_owned(),
    }
}
