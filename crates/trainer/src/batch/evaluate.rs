use loraloom_data::Sample;
use loraloom_pipeline::Pipeline;

use super::assemble::{TaskRows, assemble};
use crate::{error::Result, tasks::Place};

/// Token-normalised cross-entropy of one adapter over `rows`, so many of them at once, without dropout.
pub(crate) fn evaluate(
    pipeline: &Pipeline,
    rows: &[Sample],
    place: Place,
    (rows_at_once, max_seq_len): (usize, usize),
) -> Result<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for samples in rows.chunks(rows_at_once) {
        let part = TaskRows {
            slot: place.slot,
            samples: samples.iter().collect(),
            longest: samples.iter().map(Sample::len).max().unwrap_or(0),
            first_sample: 0,
            max_seq_len,
            step_targets: 1,
        };
        let batch = assemble(&[part], None)?;
        let losses = pipeline.target_losses(place.group, &batch.microbatch)?;
        count += losses.len();
        sum += losses.into_iter().map(f64::from).sum::<f64>();
    }
    Ok(sum / count as f64)
}
