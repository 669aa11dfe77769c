//! One iteration handed to the device: the next step of every running task, together.

use std::time::Instant;

use batchlora::{DropoutDraw, SlotUpdate};

use crate::{
    TrainerError,
    assemble::{AssembledBatch, TaskRows, assemble},
    pending::{PendingIteration, SubmittedStep, TargetRange},
    session::Session,
    task::{StepRows, TrainingTask},
    train_step::train_step,
};

impl Session<'_> {
    /// Submits the next optimizer step of all running tasks and asks for its results, without
    /// waiting for them.
    pub(crate) fn submit(&mut self) -> Result<PendingIteration, TrainerError> {
        let begun = Instant::now();
        self.iteration += 1;
        let rows: Vec<StepRows<'_>> = self.running.iter().map(TrainingTask::next_rows).collect();
        let steps: Vec<SubmittedStep> = rows
            .iter()
            .zip(&self.running)
            .map(|(rows, task)| SubmittedStep {
                task: task.id,
                name: task.config.name.clone(),
                step: task.submitted + 1,
                learning_rate: task.learning_rate(),
                target_tokens: rows.target_tokens,
                tokens: rows.tokens,
            })
            .collect();
        let (batches, ranges) = self.microbatches(&rows)?;
        let updates: Vec<_> = self.running.iter().map(|task| Some(update(task))).collect();
        let tensors = train_step(&mut self.stage, &batches, &updates)?;
        for task in &mut self.running {
            task.submitted += 1;
        }
        PendingIteration::new(self.iteration, begun, steps, ranges, tensors)
    }

    /// The micro-batches of a step: the first of every task together, then the second of those that
    /// have one, and so on; and whose targets each of them has.
    fn microbatches(
        &self,
        rows: &[StepRows<'_>],
    ) -> Result<(Vec<AssembledBatch>, Vec<Vec<TargetRange>>), TrainerError> {
        let draws: Vec<DropoutDraw> = self
            .running
            .iter()
            .map(|task| DropoutDraw {
                seed: task.config.seed,
                step: task.submitted as u32,
            })
            .collect();
        let counts = rows.iter().map(|rows| rows.microbatches.len());
        let count = counts.max().unwrap_or(0);
        let (mut batches, mut ranges) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for index in 0..count {
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
            let batch = assemble(self.model, &parts, Some(draws.clone()), self.stage.device())?;
            let targets = parts.iter().zip(&batch.targets_per_task);
            let range = |(part, &count): (&TaskRows<'_>, &usize)| TargetRange {
                slot: part.slot,
                count,
            };
            ranges.push(targets.map(range).collect());
            batches.push(batch);
        }
        Ok((batches, ranges))
    }
}

/// The optimizer's numbers for a task's next step.
fn update(task: &TrainingTask) -> SlotUpdate {
    let train = &task.config.train;
    SlotUpdate {
        learning_rate: task.learning_rate(),
        beta1: train.adam_beta1,
        beta2: train.adam_beta2,
        epsilon: train.adam_epsilon,
        weight_decay: train.weight_decay,
        max_grad_norm: train.max_grad_norm,
        step: task.submitted as u64 + 1,
    }
}
