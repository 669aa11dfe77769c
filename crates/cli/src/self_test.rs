//! Does a device compute? One small product, compared with the host's.

use burn::tensor::{Device, Tensor, TensorData};

use crate::panics;

/// Rows and columns of the matrices.
const SIZE: usize = 64;
/// Products of 64 terms below 1 in magnitude; devices may multiply in a shorter type.
const TOLERANCE: f32 = 0.05;

/// Multiplies two matrices on `device` and compares with the host. Returns the largest difference.
///
/// # Errors
///
/// If the device fails or its result is another one.
pub(crate) fn matmul(device: &Device) -> Result<f32, String> {
    let a: Vec<f32> = (0..SIZE * SIZE).map(|i| value(i, 37)).collect();
    let b: Vec<f32> = (0..SIZE * SIZE).map(|i| value(i, 53)).collect();
    let computed = panics::catch(|| {
        let tensor = |values: &[f32]| {
            Tensor::<2>::from_data(TensorData::new(values.to_vec(), [SIZE, SIZE]), device)
        };
        let data = tensor(&a).matmul(tensor(&b)).try_into_data();
        let data = data.map_err(|error| error.to_string())?;
        data.try_to_vec::<f32>().map_err(|error| error.to_string())
    });
    let computed = computed.unwrap_or_else(Err)?;
    let difference = computed
        .iter()
        .zip(host_matmul(&a, &b))
        .map(|(left, right)| (left - right).abs())
        .fold(0.0, f32::max);
    if computed.len() == SIZE * SIZE && difference <= TOLERANCE {
        Ok(difference)
    } else {
        Err(format!(
            "a {SIZE}x{SIZE} product differs from the host's by {difference:e}"
        ))
    }
}

/// Numbers in (-1, 1) without a pattern that a transposed product would share.
fn value(index: usize, step: usize) -> f32 {
    ((index * step) % 101) as f32 / 50.5 - 1.0
}

fn host_matmul(a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut product = vec![0.0; SIZE * SIZE];
    for row in 0..SIZE {
        for column in 0..SIZE {
            product[row * SIZE + column] = (0..SIZE)
                .map(|k| a[row * SIZE + k] * b[k * SIZE + column])
                .sum();
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::{SIZE, TOLERANCE, host_matmul, matmul, value};
    use crate::device::cpu;

    #[test]
    fn the_cpu_passes() {
        let difference = matmul(&cpu().device).unwrap();
        assert!(difference < 1e-3, "{difference}");
    }

    #[test]
    fn the_product_is_not_symmetric_within_the_tolerance() {
        let matrix = |step| {
            (0..SIZE * SIZE)
                .map(|i| value(i, step))
                .collect::<Vec<f32>>()
        };
        let (ab, ba) = (
            host_matmul(&matrix(37), &matrix(53)),
            host_matmul(&matrix(53), &matrix(37)),
        );
        assert!(
            ab.iter()
                .zip(ba)
                .any(|(x, y)| (x - y).abs() > 10.0 * TOLERANCE)
        );
    }
}
