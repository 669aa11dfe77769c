use std::time::Instant;

use burn::tensor::{Device, FloatDType};
use loraloom_model::ModelError;

use crate::TrainerError;

/// Samples a median is taken of.
const SAMPLES: usize = 7;
/// A sample repeats its work until it takes about this long, so that the synchronisation at its end
/// is small beside it.
const SAMPLE_SECONDS: f64 = 0.02;
const MOST_REPETITIONS: usize = 100;

/// Something to be timed, again and again.
pub(super) type Work<'a> = &'a mut dyn FnMut() -> Result<(), TrainerError>;

/// Median seconds of each piece of work. The pieces take turns, so that what else the machine does
/// falls on all of them.
pub(super) fn medians(
    device: &Device,
    mut pieces: Vec<Work<'_>>,
) -> Result<Vec<f64>, TrainerError> {
    let mut repetitions = Vec::new();
    for piece in &mut pieces {
        // The first run compiles and tunes.
        seconds(device, 1, piece)?;
        let once = seconds(device, 1, piece)?;
        repetitions.push(((SAMPLE_SECONDS / once) as usize).clamp(1, MOST_REPETITIONS));
    }
    let mut samples = vec![Vec::new(); pieces.len()];
    for _ in 0..SAMPLES {
        for ((samples, piece), &count) in samples.iter_mut().zip(&mut pieces).zip(&repetitions) {
            samples.push(seconds(device, count, piece)? / count as f64);
        }
    }
    Ok(samples.into_iter().map(median).collect())
}

/// Seconds that work takes `count` times, with nothing left to do on the device before and after.
pub(super) fn seconds(device: &Device, count: usize, work: Work<'_>) -> Result<f64, TrainerError> {
    sync(device)?;
    let started = Instant::now();
    for _ in 0..count {
        work()?;
    }
    sync(device)?;
    Ok(started.elapsed().as_secs_f64())
}

/// The middle one; of an even number the upper middle. 0 of none.
pub(super) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(0.0)
}

pub(super) fn sync(device: &Device) -> Result<(), TrainerError> {
    let failed = |error| ModelError::Device {
        reason: format!("{error:?}"),
    };
    Ok(device.sync().map_err(failed)?)
}

/// The type's name in a configuration.
pub(super) fn dtype_name(dtype: FloatDType) -> &'static str {
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
