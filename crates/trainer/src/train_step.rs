//! The arithmetic of one optimizer step, of all adapters of a stage together.

use batchlora::{AdamWStep, SlotUpdate};
use burn::tensor::Tensor;
use loraloom_pipeline::{PipelineError, Stage, StageGradients};

use crate::assemble::AssembledBatch;

/// What one step computed, still on the device.
#[derive(Debug)]
pub(crate) struct StepTensors {
    /// Cross-entropy of every target of each micro-batch in nats, `[targets]` in the order of the
    /// micro-batch's targets.
    pub(crate) losses: Vec<Tensor<1>>,
    /// Square of the global norm of each slot's gradient, before clipping, `[slots]`; `None` if no
    /// micro-batch gave a gradient.
    pub(crate) squared_norms: Option<Tensor<1>>,
}

/// One optimizer step: forward and backward of every micro-batch, then one update of every slot
/// with the sum of its gradients. A batch's target weights say what a token counts in that sum.
///
/// Everything is submitted and nothing is read back: on a device that works asynchronously this
/// returns before the work is done. Slots whose update is `None`, and slots whose gradient is not
/// finite, keep their weights and moments.
///
/// # Shapes
/// - `updates`: one entry per slot of the stage
///
/// # Errors
/// If the stage is not the whole model, or a batch names a slot that the stage does not have.
pub(crate) fn train_step(
    stage: &mut Stage,
    batches: &[AssembledBatch],
    updates: &[Option<SlotUpdate>],
) -> Result<StepTensors, PipelineError> {
    let mut losses = Vec::with_capacity(batches.len());
    let mut sum: Option<StageGradients> = None;
    for batch in batches {
        let hidden = stage.embed(&batch.ids)?;
        let (hidden, tape) = stage.forward(hidden, &batch.microbatch)?;
        let (loss, gradient) = stage.loss(hidden, &batch.targets)?;
        let (gradients, _) = stage.backward(tape, gradient, &batch.microbatch)?;
        losses.push(loss);
        match &mut sum {
            Some(sum) => sum.accumulate(gradients),
            None => sum = Some(gradients),
        }
    }
    let mut squared_norms = None;
    if let Some(gradients) = sum
        && let Some(squared) = stage.squared_gradient_norms(&gradients)
    {
        stage.step(gradients, &AdamWStep::new(updates, squared.clone()));
        squared_norms = Some(squared);
    }
    Ok(StepTensors {
        losses,
        squared_norms,
    })
}
