use loraloom_data::Sample;
use loraloom_model::{LlamaConfig, to_host};
use loraloom_pipeline::Stage;

use crate::{
    TrainerError,
    assemble::{TaskRows, assemble},
};

/// Token-normalised cross-entropy of one slot's adapter over `rows`, without dropout.
pub(crate) fn evaluate(
    stage: &Stage,
    model: &LlamaConfig,
    rows: &[Sample],
    slot: usize,
    (batch_size, max_seq_len): (usize, usize),
) -> Result<f64, TrainerError> {
    let (mut sum, mut count) = (0.0, 0);
    for samples in rows.chunks(batch_size) {
        let samples = samples.iter().collect();
        let part = TaskRows {
            slot,
            samples,
            first_sample: 0,
            max_seq_len,
            weight: 1.0,
        };
        let batch = assemble(model, &[part], None, stage.device())?;
        let hidden = stage.infer(stage.embed(&batch.ids)?, &batch.microbatch)?;
        let losses = to_host(stage.target_losses(hidden, &batch.targets)?)?;
        count += losses.len();
        sum += losses.into_iter().map(f64::from).sum::<f64>();
    }
    Ok(sum / count as f64)
}
