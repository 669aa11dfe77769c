//! The next step of every running task, laid out for the stages.

use batchlora::{DropoutDraw, SlotUpdate};
use loraloom_pipeline::{
    Microbatch,
    executor::{GroupPlan, StepPlan},
};

use loraloom_scheduler::{Load, Work};

use crate::{
    TrainerError,
    assemble::{TaskRows, assemble},
    ledger::Ledger,
    pending::{SubmittedGroup, SubmittedStep, TargetRange},
    task::{StepRows, TrainingTask},
};

impl Ledger<'_> {
    /// The next step of all running tasks, group by group, and what is to be known of it when its
    /// results come.
    pub(crate) fn plan_step(&self) -> Result<(StepPlan, Vec<SubmittedGroup>), TrainerError> {
        let (mut plan, mut submitted) = (StepPlan::default(), Vec::new());
        for group in 0..self.groups() {
            let members: Vec<&TrainingTask> = self.members(group).collect();
            let split = self.config.pipeline.microbatches;
            let rows = members.iter().map(|task| task.next_rows(split));
            let rows: Vec<StepRows<'_>> = rows.collect();
            let (microbatches, ranges) = microbatches(&members, &rows)?;
            plan.groups.push(GroupPlan {
                microbatches,
                updates: members.iter().map(|task| Some(update(task))).collect(),
            });
            submitted.push(SubmittedGroup {
                steps: members.iter().zip(&rows).map(described).collect(),
                ranges,
                work: work(&members, &rows),
                load: load(&rows),
            });
        }
        Ok((plan, submitted))
    }
}

/// What the group's step has to do.
fn work(members: &[&TrainingTask], rows: &[StepRows<'_>]) -> Work {
    let counts = rows.iter().map(|rows| rows.microbatches.len());
    let mut work = Work {
        passes: counts.clone().max().unwrap_or(0) as f64,
        segments: counts.sum::<usize>() as f64,
        ..Work::default()
    };
    for (task, rows) in members.iter().zip(rows) {
        work.tokens += rows.tokens as f64;
        work.rank_tokens += (task.config.lora.r * rows.tokens) as f64;
    }
    work
}

/// What the largest micro-batch asks of memory, adapters apart.
fn load(rows: &[StepRows<'_>]) -> Load {
    let count = rows.iter().map(|rows| rows.microbatches.len()).max();
    let at = |index: usize| {
        let parts = rows.iter().filter_map(|rows| rows.microbatches.get(index));
        parts
            .flatten()
            .map(|sample| sample.len() as u64)
            .fold(Load::default(), |sum, length| Load {
                tokens: sum.tokens + length,
                squared_tokens: sum.squared_tokens + length * length,
                adapter_bytes: 0,
            })
    };
    let loads = (0..count.unwrap_or(0)).map(at);
    loads.fold(Load::default(), |largest, load| Load {
        tokens: largest.tokens.max(load.tokens),
        squared_tokens: largest.squared_tokens.max(load.squared_tokens),
        adapter_bytes: 0,
    })
}

fn described((task, rows): (&&TrainingTask, &StepRows<'_>)) -> SubmittedStep {
    SubmittedStep {
        task: task.id,
        name: task.config.name.clone(),
        step: task.submitted + 1,
        learning_rate: task.learning_rate(),
        target_tokens: rows.target_tokens,
        tokens: rows.tokens,
    }
}

/// The micro-batches of a group's step: the first of every task together, then the second of those
/// that have one, and so on; and whose targets each of them has.
fn microbatches(
    members: &[&TrainingTask],
    rows: &[StepRows<'_>],
) -> Result<(Vec<Microbatch>, Vec<Vec<TargetRange>>), TrainerError> {
    let draw = |task: &&TrainingTask| DropoutDraw {
        seed: task.config.seed,
        step: task.submitted as u32,
    };
    let draws: Vec<DropoutDraw> = members.iter().map(draw).collect();
    let counts = rows.iter().map(|rows| rows.microbatches.len());
    let count = counts.max().unwrap_or(0);
    let mut first_samples = vec![0; members.len()];
    let (mut batches, mut all_ranges) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for index in 0..count {
        let mut parts: Vec<TaskRows<'_>> = Vec::new();
        for (slot, (rows, task)) in rows.iter().zip(members).enumerate() {
            let Some(samples) = rows.microbatches.get(index) else {
                continue;
            };
            parts.push(TaskRows {
                slot,
                samples: samples.clone(),
                first_sample: first_samples[slot],
                max_seq_len: task.config.train.max_seq_len,
                weight: (1.0 / rows.target_tokens as f64) as f32,
            });
            first_samples[slot] += samples.len();
        }
        let batch = assemble(&parts, Some(draws.clone()))?;
        let targets = parts.iter().zip(&batch.targets_per_task);
        let range = |(part, &count): (&TaskRows<'_>, &usize)| TargetRange {
            slot: part.slot,
            count,
        };
        all_ranges.push(targets.map(range).collect());
        batches.push(batch.microbatch);
    }
    Ok((batches, all_ranges))
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
