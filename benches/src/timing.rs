use std::time::Instant;

use burn::tensor::{Device, FloatDType};
use loraloom_model::ModelError;
use loraloom_pipeline::PipelineError;

/// Samples of which the median is taken.
const SAMPLES: usize = 7;
/// A sample repeats its work until it takes about this long, so that the synchronisation at its end
/// is small beside it.
const SAMPLE_SECONDS: f64 = 0.02;
const MAX_REPETITIONS: usize = 100;

/// Median seconds of each piece of work. The pieces take turns, so that other load on the machine
/// slows all of them.
///
/// # Errors
/// Of the work, or if the device fails.
pub fn median_seconds<W>(device: &Device, mut pieces: Vec<W>) -> Result<Vec<f64>, PipelineError>
where
    W: FnMut() -> Result<(), PipelineError>,
{
    let mut repetitions = Vec::new();
    for piece in &mut pieces {
        // The first run compiles and tunes.
        seconds(device, 1, &mut *piece)?;
        let once = seconds(device, 1, piece)?;
        repetitions.push(((SAMPLE_SECONDS / once) as usize).clamp(1, MAX_REPETITIONS));
    }
    let mut samples = vec![Vec::new(); pieces.len()];
    for _ in 0..SAMPLES {
        for ((samples, piece), &count) in samples.iter_mut().zip(&mut pieces).zip(&repetitions) {
            samples.push(seconds(device, count, piece)? / count as f64);
        }
    }
    Ok(samples.into_iter().map(median).collect())
}

/// Seconds that `count` repetitions take on a device that is idle before and after.
pub(crate) fn seconds(
    device: &Device,
    count: usize,
    mut work: impl FnMut() -> Result<(), PipelineError>,
) -> Result<f64, PipelineError> {
    sync(device)?;
    let started = Instant::now();
    for _ in 0..count {
        work()?;
    }
    sync(device)?;
    Ok(started.elapsed().as_secs_f64())
}

/// The upper median; 0 without samples.
pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(0.0)
}

/// Waits until the device is idle.
pub(crate) fn sync(device: &Device) -> Result<(), PipelineError> {
    device
        .sync()
        .map_err(|error| device_failure(format!("{error:?}")))
}

pub(crate) fn device_failure(reason: impl Into<String>) -> PipelineError {
    let reason = reason.into();
    ModelError::Device { reason }.into()
}

/// The type's name in a configuration.
pub(crate) fn dtype_name(dtype: FloatDType) -> &'static str {
    match dtype {
        FloatDType::F64 => "float64",
        FloatDType::F32 | FloatDType::Flex32 => "float32",
        FloatDType::F16 => "float16",
        FloatDType::BF16 => "bfloat16",
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle_one() {
        assert!((median(vec![3.0, 100.0, 1.0]) - 3.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0]) - 4.0).abs() < f64::EPSILON);
    }
}
