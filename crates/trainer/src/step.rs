//! The arithmetic of one iteration: what every running task's step computes, together.

use batchlora::{AdamWStep, DropoutDraw, SlotUpdate};
use burn::tensor::Tensor;
use loraloom_model::to_host;
use loraloom_pipeline::StageGradients;

use crate::{
    TrainerError,
    assemble::{TaskRows, assemble},
    session::Session,
    task::{StepRows, TrainingTask},
};

/// What one task's step came to.
pub(crate) struct StepOutcome {
    pub(crate) loss: f64,
    pub(crate) grad_norm: f64,
    pub(crate) learning_rate: f64,
    pub(crate) target_tokens: usize,
    pub(crate) tokens: usize,
}

impl Session<'_> {
    /// Forward, backward and optimizer step of all running tasks together.
    pub(crate) fn step(&mut self) -> Result<Vec<StepOutcome>, TrainerError> {
        let rows: Vec<StepRows<'_>> = self.running.iter().map(TrainingTask::next_rows).collect();
        let draws: Vec<DropoutDraw> = self
            .running
            .iter()
            .map(|task| DropoutDraw {
                seed: task.config.seed,
                step: task.steps as u32,
            })
            .collect();
        let microbatches = rows
            .iter()
            .map(|rows| rows.microbatches.len())
            .max()
            .unwrap_or(0);
        let mut gradients: Option<StageGradients> = None;
        let mut sums = vec![0f64; self.running.len()];
        for index in 0..microbatches {
            let parts: Vec<TaskRows<'_>> = rows
                .iter()
                .zip(&self.running)
                .enumerate()
                .filter_map(|(slot, (rows, task))| {
                    let samples = rows.microbatches.get(index)?.clone();
                    Some(TaskRows {
                        slot,
                        samples,
                        first_sample: index * task.config.train.batch_size,
                        max_seq_len: task.config.train.max_seq_len,
                        weight: (1.0 / rows.target_tokens as f64) as f32,
                    })
                })
                .collect();
            let device = self.stage.device().clone();
            let batch = assemble(self.model, &parts, Some(draws.clone()), &device)?;
            let hidden = self.stage.embed(&batch.ids)?;
            let (hidden, tape) = self.stage.forward(hidden, &batch.microbatch)?;
            let (losses, gradient) = self.stage.loss(hidden, &batch.targets)?;
            let (part, _) = self.stage.backward(tape, gradient, &batch.microbatch);
            match &mut gradients {
                Some(sum) => sum.accumulate(part),
                None => gradients = Some(part),
            }
            let mut losses = to_host(losses)?.into_iter();
            for (part, count) in parts.iter().zip(batch.targets_per_task) {
                sums[part.slot] += losses.by_ref().take(count).map(f64::from).sum::<f64>();
            }
        }

        let mut outcomes: Vec<StepOutcome> = rows
            .iter()
            .zip(&self.running)
            .zip(sums)
            .map(|((rows, task), sum)| StepOutcome {
                loss: sum / rows.target_tokens as f64,
                grad_norm: 0.0,
                learning_rate: task.learning_rate(),
                target_tokens: rows.target_tokens,
                tokens: rows.tokens,
            })
            .collect();
        for (outcome, norm) in outcomes.iter_mut().zip(self.optimize(gradients)?) {
            outcome.grad_norm = f64::from(norm);
        }
        Ok(outcomes)
    }

    /// Steps all adapters and returns the global norms of their gradients.
    fn optimize(&mut self, gradients: Option<StageGradients>) -> Result<Vec<f32>, TrainerError> {
        let updates: Vec<Option<SlotUpdate>> = self
            .running
            .iter()
            .map(|task| {
                let train = &task.config.train;
                Some(SlotUpdate {
                    learning_rate: task.learning_rate(),
                    beta1: train.adam_beta1,
                    beta2: train.adam_beta2,
                    epsilon: train.adam_epsilon,
                    weight_decay: train.weight_decay,
                    max_grad_norm: train.max_grad_norm,
                    step: task.steps as u64 + 1,
                })
            })
            .collect();
        let Some(gradients) = gradients else {
            return Ok(vec![0.0; updates.len()]);
        };
        let squared: Tensor<1> = match self.stage.squared_gradient_norms(&gradients) {
            Some(squared) => squared,
            None => return Ok(vec![0.0; updates.len()]),
        };
        self.stage
            .step(gradients, &AdamWStep::new(&updates, squared.clone()));
        Ok(to_host(squared.sqrt())?)
    }
}
