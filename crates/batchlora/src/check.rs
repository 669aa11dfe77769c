use batchlora_kernels::product_failure;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use crate::{
    AdapterBank, AdapterState, BatchLoraError, DropoutDraw, LoraSpec, Segment, Segments,
    dropout::philox, frozen_linear, seed_gradient,
};

const ROWS: usize = 40;
const SHAPE: [usize; 2] = [64, 48];
/// Share of the largest element. Devices may multiply `float32` with 10 bits of mantissa.
const TOLERANCE: f32 = 0.02;

/// Most terms of the sums that check a row of a product.
const MOST_TERMS: usize = 1 << 22;

/// Runs the operator on a device, forward and backward of a small batch of two adapters with activations of
/// this type, and compares it with the CPU. Returns the largest difference, as a share of the largest
/// element.
///
/// # Errors
/// [`BatchLoraError::Unavailable`] if the device does not have the type, [`BatchLoraError::Launch`] if a kernel fails
/// or returns wrong results.
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
    let pairs = found.iter().zip(&expected);
    for (what, (found, expected)) in ["h", "dx", "da", "db"].into_iter().zip(pairs) {
        let magnitudes = expected.iter().map(|value| value.abs());
        let largest = magnitudes.fold(0f32, f32::max);
        let pairs = found.iter().zip(expected);
        let error = pairs.fold(0f32, |error, (found, expected)| {
            let difference = (found - expected).abs();
            // Treat NaN as infinitely wrong.
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
    Ok([
        read(h.without_autodiff(), launch)?,
        read(dx, launch)?,
        read(lora.a, launch)?,
        read(lora.b, launch)?,
    ])
}

fn read(
    tensor: Tensor<2>,
    failed: &impl Fn(String) -> BatchLoraError,
) -> Result<Vec<f32>, BatchLoraError> {
    let data = tensor.cast(FloatDType::F32).try_into_data();
    let data = data.map_err(|error| failed(format!("{error:?}")))?;
    if let Some(reason) = product_failure() {
        return Err(failed(reason));
    }
    let values = data.try_into_vec();
    values.map_err(|error| failed(format!("{error:?}")))
}

/// Uniform in ±1.
fn uniform(shape: [usize; 2], seed: u32, device: &Device) -> Tensor<2> {
    let words = (0..).flat_map(|block| philox([block, seed, 0, 0], [0; 2]));
    let values = words.map(|word| word as f32 / 2f32.powi(31) - 1.0);
    let values: Vec<f32> = values.take(shape[0] * shape[1]).collect();
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

/// Checks a product of this size on a device, `[rows, d_in] × [d_in, d_out]` with the weight stored as
/// `[d_out, d_in]`, and that of its backward, `[rows, d_out] × [d_out, d_in]`: three rows of each, or some
/// columns of them where they are large, are compared with sums in double precision.
///
/// # Errors
/// [`BatchLoraError::Launch`] if a product is off by more than rounding explains, or cannot be read.
pub fn check_product(
    device: &Device,
    dtype: FloatDType,
    [rows, d_in, d_out]: [usize; 3],
) -> Result<(), BatchLoraError> {
    // Of the result; the sum is `float32`.
    let rounding = match dtype {
        FloatDType::BF16 => 2f64.powi(-8),
        FloatDType::F16 => 2f64.powi(-11),
        _ => 0.0,
    };
    let failed = |reason: String| BatchLoraError::Launch {
        device: format!("{device:?}"),
        reason,
    };
    let device = &device.clone().without_autodiff();
    let weight = operand([d_out, d_in], 1, dtype, device);
    for forward in [true, false] {
        let (inner, columns, weight) = if forward {
            (d_in, d_out, weight.clone().transpose())
        } else {
            (d_out, d_in, weight.clone())
        };
        let x = operand([rows, inner], 2, dtype, device);
        let found = frozen_linear(x, weight);
        for row in [0, rows / 2, rows - 1] {
            let line = read(found.clone().narrow(0, row, 1), &failed)?;
            let compared = (MOST_TERMS / inner).clamp(1, columns);
            for (column, found) in line.into_iter().enumerate().step_by(columns / compared) {
                let terms = (0..inner).map(|step| {
                    let at = if forward {
                        (column, step)
                    } else {
                        (step, column)
                    };
                    f64::from(element(dtype, 1, at)) * f64::from(element(dtype, 2, (row, step)))
                });
                let (mut expected, mut size) = (0.0, 0.0);
                for term in terms {
                    expected += term;
                    size += term.abs();
                }
                if !is_rounding(f64::from(found), expected, size, rounding) {
                    return Err(failed(format!(
                        "a product [{rows}, {inner}] x [{inner}, {columns}] is {found} at [{row}, \
                         {column}] and should be {expected}"
                    )));
                }
            }
        }
    }
    Ok(())
}

/// True if a sum differs from `expected` by no more than rounding: `rounding` of the result, and that of a
/// `float32` sum, relative to `size`, the sum of its terms' absolute values. NaN fails.
fn is_rounding(found: f64, expected: f64, size: f64, rounding: f64) -> bool {
    (found - expected).abs() <= rounding * expected.abs() + 1e-6 * size
}

/// A number in ±1 that the type holds: an eighth, or, in `float32`, one that TF32 would round.
fn element(dtype: FloatDType, seed: u32, (row, column): (usize, usize)) -> f32 {
    let mixed = (row as u32).wrapping_mul(0x9E37_79B1) ^ (column as u32).wrapping_mul(0x85EB_CA77);
    let mixed = (mixed ^ seed).wrapping_mul(0xC2B2_AE3D);
    let bits = if dtype == FloatDType::F32 { 20 } else { 4 };
    (mixed >> (32 - bits)) as f32 / (1 << (bits - 1)) as f32 - 1.0
}

fn operand(shape: [usize; 2], seed: u32, dtype: FloatDType, device: &Device) -> Tensor<2> {
    let of_row = |row| (0..shape[1]).map(move |column| element(dtype, seed, (row, column)));
    let values = (0..shape[0]).flat_map(of_row);
    let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
    let dtype = DType::from(dtype);
    Tensor::from_data(data.convert_dtype(dtype), (device, dtype))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType};

    use super::{check_product, is_rounding};

    #[test]
    fn products_of_the_cpu_are_right() {
        for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
            check_product(&Device::flex(), dtype, [70, 96, 40]).expect("a right product");
        }
    }

    #[test]
    fn what_rounding_does_not_explain_is_wrong() {
        assert!(is_rounding(2.0, 2.0 + 1e-6, 4.0, 0.0));
        assert!(is_rounding(2.0, 2.01, 4.0, 2f64.powi(-7)));
        for wrong in [2.00001, f64::NAN, f64::INFINITY, -2.0] {
            assert!(!is_rounding(wrong, 2.0, 4.0, 0.0), "{wrong}");
        }
        assert!(!is_rounding(2.1, 2.0, 4.0, 2f64.powi(-7)));
    }
}
