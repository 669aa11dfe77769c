//! Samples of several tasks to one batch: tasks in slot order, each a contiguous segment, its
//! sequences one after another without padding.

use batchlora::{BatchLoraError, DropoutDraw, Segment, Segments};
use loraloom_data::Sample;
use loraloom_model::{Sequences, Targets};
use loraloom_pipeline::Microbatch;

/// One task's part of a batch.
#[derive(Debug)]
pub(crate) struct TaskRows<'a> {
    /// Adapter slot within the group.
    pub(crate) slot: usize,
    /// The samples.
    pub(crate) samples: Vec<&'a Sample>,
    /// Place of the first sample within the task's step.
    pub(crate) first_sample: usize,
    /// No sample of the task is longer.
    pub(crate) max_seq_len: usize,
    /// Tokens of the longest row of the batch that the samples are of, which dynamic rope goes by: a
    /// batch that is cut into micro-batches computes what it would whole.
    pub(crate) longest: usize,
    /// Weight of a target token in the loss.
    pub(crate) weight: f32,
}

/// A batch as the stages take it.
#[derive(Debug)]
pub(crate) struct AssembledBatch {
    pub(crate) microbatch: Microbatch,
    /// Number of targets of each task, in the order of the tasks: targets are in task order.
    pub(crate) targets_per_task: Vec<usize>,
}

/// Lays the tasks' samples out. A sample's tokens after its last prediction are left out: nothing
/// that is predicted depends on them.
pub(crate) fn assemble(
    tasks: &[TaskRows<'_>],
    draws: Option<Vec<DropoutDraw>>,
) -> Result<AssembledBatch, BatchLoraError> {
    let (mut ids, mut dropout_rows) = (Vec::new(), Vec::new());
    let (mut lengths, mut rope_lengths) = (Vec::new(), Vec::new());
    let (mut segments, mut targets_per_task) = (Vec::new(), Vec::new());
    let mut targets = Targets::default();
    for task in tasks {
        let (first_row, first_target) = (ids.len(), targets.ids.len());
        for (index, sample) in task.samples.iter().enumerate() {
            let row = ids.len();
            let length = predicting_length(sample);
            for position in 1..=length {
                if sample.is_target[position] {
                    targets.rows.push(row + position - 1);
                    targets.ids.push(sample.ids[position]);
                    targets.weights.push(task.weight);
                }
            }
            let counter = (task.first_sample + index) * task.max_seq_len;
            dropout_rows.extend((counter..counter + length).map(|row| row as u32));
            ids.extend_from_slice(&sample.ids[..length]);
            lengths.push(length);
            rope_lengths.push(task.longest);
        }
        segments.push(Segment {
            rows: first_row..ids.len(),
            slot: task.slot,
        });
        targets_per_task.push(targets.ids.len() - first_target);
    }
    Ok(AssembledBatch {
        microbatch: Microbatch {
            sequences: Sequences::from_lengths(lengths),
            past: 0,
            rope_lengths,
            segments: Segments::new(ids.len(), segments)?.with_dropout_rows(dropout_rows)?,
            draws,
            targets,
            ids,
        },
        targets_per_task,
    })
}

/// Tokens up to the one that predicts the last target.
pub(crate) fn predicting_length(sample: &Sample) -> usize {
    sample
        .is_target
        .iter()
        .rposition(|&target| target)
        .unwrap_or(0)
}
