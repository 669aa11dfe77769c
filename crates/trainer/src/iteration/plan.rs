//! Plans an iteration: the next step, or part of a step, of every running task.

use batchlora::{DropoutDraw, SlotUpdate};
use loraloom_pipeline::{
    Microbatch,
    executor::{GroupPlan, IterationPlan},
};
use loraloom_scheduler::{Load, Work};

use super::submitted::SubmittedGroup;
use crate::{
    batch::{TargetRange, TaskPreference, TaskRows, assemble},
    error::Result,
    tasks::{StepRows, Task, Tasks},
};

/// The next iteration of all running tasks, by group, and the data to interpret its results. Batches are cut into
/// `split` micro-batches.
pub(crate) fn plan_iteration(
    tasks: &Tasks,
    split: usize,
) -> Result<(IterationPlan, Vec<SubmittedGroup>)> {
    let (mut plan, mut submitted) = (IterationPlan::default(), Vec::new());
    for group in 0..tasks.groups().len() {
        let members: Vec<&Task> = tasks.members(group).collect();
        let rows = members.iter().map(|task| task.next_rows(split));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let (microbatches, ranges) = microbatches(&members, &rows)?;
        plan.groups.push(GroupPlan {
            microbatches,
            updates: members.iter().zip(&rows).map(update).collect(),
        });
        submitted.push(SubmittedGroup {
            ranges,
            work: work(&members, &rows),
            load: load(&rows),
            steps: rows.into_iter().map(|rows| rows.step).collect(),
        });
    }
    Ok((plan, submitted))
}

/// The work of a group's iteration, for the step-time model.
fn work(members: &[&Task], rows: &[StepRows]) -> Work {
    let counts = rows.iter().map(|rows| rows.microbatches.len());
    let mut work = Work {
        passes: counts.clone().max().unwrap_or(0) as f64,
        segments: counts.sum::<usize>() as f64,
        ..Work::default()
    };
    for (task, rows) in members.iter().zip(rows) {
        work.tokens += rows.step.tokens as f64;
        work.rank_tokens += (task.config.lora.ranks() * rows.step.tokens) as f64;
    }
    work
}

/// Memory load of the largest micro-batch, without adapters.
fn load(rows: &[StepRows]) -> Load {
    let count = rows.iter().map(|rows| rows.microbatches.len()).max();
    let at = |index: usize| {
        let mut sum = Load::default();
        let parts = rows.iter().filter_map(|rows| rows.microbatches.get(index));
        let samples = parts.flat_map(|part| &part.samples);
        for length in samples.map(|sample| sample.len() as u64) {
            sum.tokens += length;
            sum.squared_tokens += length * length;
        }
        sum
    };
    let mut largest = Load::default();
    for load in (0..count.unwrap_or(0)).map(at) {
        largest.tokens = largest.tokens.max(load.tokens);
        largest.squared_tokens = largest.squared_tokens.max(load.squared_tokens);
    }
    largest
}

/// The micro-batches of a group's iteration: the first of every task together, then the second of those that have
/// one, and so on; with the target ranges of each.
fn microbatches(
    members: &[&Task],
    rows: &[StepRows],
) -> Result<(Vec<Microbatch>, Vec<Vec<TargetRange>>)> {
    let draw = |task: &&Task| DropoutDraw {
        seed: task.config.seed,
        step: task.submitted.steps() as u32,
    };
    let draws: Vec<DropoutDraw> = members.iter().map(draw).collect();
    let counts = rows.iter().map(|rows| rows.microbatches.len());
    let count = counts.max().unwrap_or(0);
    let mut first_samples: Vec<usize> = rows.iter().map(|rows| rows.first_sample).collect();
    let (mut batches, mut all_ranges) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for index in 0..count {
        let mut parts: Vec<TaskRows<'_>> = Vec::new();
        for (slot, (rows, task)) in rows.iter().zip(members).enumerate() {
            let Some(batch) = rows.microbatches.get(index) else {
                continue;
            };
            let preference = task.preference.as_ref().map(|loss| TaskPreference {
                loss,
                references: &batch.references,
                step_rows: rows.step.step_rows,
                step_chosen_targets: rows.step_chosen_targets,
            });
            parts.push(TaskRows {
                slot: Some(slot),
                samples: batch.samples.iter().collect(),
                first_sample: first_samples[slot],
                max_seq_len: task.config.train.max_seq_len,
                longest: batch.longest,
                step_targets: rows.step.step_target_tokens,
                label_smoothing: task.config.train.label_smoothing_factor,
                preference,
                contrast: task.config.objective.contrast().map(|contrast| {
                    let texts = batch.samples.len() / 2;
                    (contrast, texts as f64 / rows.step.step_rows as f64)
                }),
            });
            first_samples[slot] += batch.samples.len();
        }
        let batch = assemble(&parts, Some(draws.clone()))?;
        all_ranges.push(batch.targets);
        batches.push(batch.microbatch);
    }
    Ok((batches, all_ranges))
}

/// The optimizer settings of a task's next step, if these rows complete it.
fn update((task, rows): (&&Task, &StepRows)) -> Option<SlotUpdate> {
    let train = &task.config.train;
    rows.step.part.ends_step().then_some(SlotUpdate {
        learning_rates: task.learning_rates(),
        beta1: train.adam_beta1,
        beta2: train.adam_beta2,
        epsilon: train.adam_epsilon,
        weight_decay: train.weight_decay,
        max_grad_norm: train.max_grad_norm,
        step: rows.step.step as u64,
    })
}
