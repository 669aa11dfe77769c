//! Joins samples of several tasks into one batch: tasks in slot order, each a contiguous segment, its sequences one
//! after another without padding. Samples of the base model have no segment.

use batchlora::{BatchLoraError, DropoutDraw, Segment, Segments};
use loraloom_config::{Contrast, PreferenceLoss};
use loraloom_data::Sample;
use loraloom_model::{PreferenceTargets, Sequences, SmoothedTargets, Targets};
use loraloom_objective::{Completion, CompletionRole, Paraphrases, TaskCompletions};
use loraloom_pipeline::Microbatch;

/// The targets of one task in one micro-batch.
#[derive(Debug, Clone)]
pub(crate) struct TargetRange {
    pub(crate) slot: usize,
    /// Number of targets; they follow those of the previous range.
    pub(crate) count: usize,
    /// Their completions, if the task's loss is a preference.
    pub(crate) completions: Option<TaskCompletions>,
    /// Factor of its loss over paraphrases in the sum of cross-entropies, if it has one.
    pub(crate) contrast: Option<f64>,
}

/// The loss of a task that is a preference.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskPreference<'a> {
    pub(crate) loss: &'a PreferenceLoss,
    /// Log-probabilities of the samples under the reference, or none.
    pub(crate) references: &'a [f32],
    /// Rows of the task's whole step.
    pub(crate) step_rows: usize,
    /// Targets of chosen samples in the task's whole step, as [`trained_targets`] counts them.
    pub(crate) step_chosen_targets: usize,
}

/// True if the prompt's tokens are targets, too: in the cross-entropy of ORPO's chosen sequences.
fn trains_prompt(loss: &PreferenceLoss, sample: &Sample) -> bool {
    matches!(loss, PreferenceLoss::Orpo(_)) && sample.preferred == Some(true)
}

/// Number of a sample's targets under a preference.
pub(crate) fn trained_targets(loss: &PreferenceLoss, sample: &Sample) -> usize {
    if trains_prompt(loss, sample) {
        sample.predicting_len()
    } else {
        sample.num_targets()
    }
}

/// One task's part of a batch.
#[derive(Debug)]
pub(crate) struct TaskRows<'a> {
    /// Adapter slot within the group; `None` is the base model.
    pub(crate) slot: Option<usize>,
    pub(crate) samples: Vec<&'a Sample>,
    /// Index of the first sample within the task's step.
    pub(crate) first_sample: usize,
    /// No sample of the task is longer.
    pub(crate) max_seq_len: usize,
    /// Tokens of the longest row of the whole batch. Dynamic rope depends on it, so micro-batches compute the same as
    /// the whole batch.
    pub(crate) longest: usize,
    /// Target tokens of the task's whole step: its loss is their mean, unless it is a preference.
    pub(crate) step_targets: usize,
    /// Share of a target's probability that is spread over the vocabulary.
    pub(crate) label_smoothing: f64,
    pub(crate) preference: Option<TaskPreference<'a>>,
    /// The loss over paraphrases, and the share of these rows in those of the task's whole step.
    pub(crate) contrast: Option<(Contrast, f64)>,
}

impl TaskRows<'_> {
    /// Its targets as label smoothing sees them.
    fn smoothed(&self, first: usize, count: usize) -> Option<SmoothedTargets> {
        (self.label_smoothing > 0.0).then_some(SmoothedTargets {
            first,
            count,
            factor: self.label_smoothing,
        })
    }

    /// Its samples as their loss over paraphrases sees them.
    fn paraphrases(&self, first: usize, loss_scale: f64) -> Option<Paraphrases> {
        let targets = self.samples.iter().map(|sample| sample.num_targets());
        self.contrast.map(|(contrast, share)| Paraphrases {
            contrast,
            first,
            targets: targets.collect(),
            weight: share * loss_scale,
        })
    }
}

/// A batch in the form that stages take.
#[derive(Debug)]
pub(crate) struct AssembledBatch {
    pub(crate) microbatch: Microbatch,
    /// The targets of each slot, in the order of the tasks.
    pub(crate) targets: Vec<TargetRange>,
}

/// Lays out the tasks' samples, without the tokens after their last prediction.
pub(crate) fn assemble(
    tasks: &[TaskRows<'_>],
    draws: Option<Vec<DropoutDraw>>,
) -> Result<AssembledBatch, BatchLoraError> {
    let (mut ids, mut dropout_rows) = (Vec::new(), Vec::new());
    let (mut lengths, mut rope_lengths) = (Vec::new(), Vec::new());
    let (mut segments, mut loss_scales) = (Vec::new(), Vec::new());
    let mut ranges = Vec::new();
    let mut targets = Targets::default();
    for task in tasks {
        let (first_row, first_target) = (ids.len(), targets.ids.len());
        // A target's weight is between 1 and 2: gradients far below that vanish in float16.
        let loss_scale = task.step_targets.next_power_of_two() as f64;
        let weight = match task.preference {
            Some(_) => 1.0,
            None => (loss_scale / task.step_targets as f64) as f32,
        };
        let mut completions = Vec::new();
        for (index, sample) in task.samples.iter().enumerate() {
            let row = ids.len();
            let length = sample.predicting_len();
            let loss = task.preference.map(|preference| preference.loss);
            let of_prompt = loss.is_some_and(|loss| trains_prompt(loss, sample));
            completions.extend(
                task.preference
                    .map(|preference| completion(sample, index, preference)),
            );
            for position in 1..=length {
                if sample.is_target[position] || of_prompt {
                    targets.rows.push(row + position - 1);
                    targets.ids.push(sample.ids[position]);
                    targets.weights.push(weight);
                }
            }
            let counter = (task.first_sample + index) * task.max_seq_len;
            dropout_rows.extend((counter..counter + length).map(|row| row as u32));
            ids.extend_from_slice(&sample.ids[..length]);
            lengths.push(length);
            rope_lengths.push(task.longest);
        }
        let count = targets.ids.len() - first_target;
        targets.smoothed.extend(task.smoothed(first_target, count));
        let Some(slot) = task.slot else { continue };
        segments.push(Segment {
            rows: first_row..ids.len(),
            slot,
        });
        loss_scales.push(loss_scale as f32);
        targets
            .paraphrases
            .extend(task.paraphrases(first_target, loss_scale));
        let completions = task.preference.map(|preference| TaskCompletions {
            preference: preference.loss.clone(),
            completions,
            step_rows: preference.step_rows,
            step_chosen_targets: preference.step_chosen_targets,
        });
        let preference = completions.clone().map(|completions| PreferenceTargets {
            first: first_target,
            loss_scale: loss_scale as f32,
            completions,
        });
        targets.preferences.extend(preference);
        ranges.push(TargetRange {
            slot,
            count,
            completions,
            contrast: task
                .contrast
                .map(|(_, share)| share * task.step_targets as f64),
        });
    }
    Ok(AssembledBatch {
        microbatch: Microbatch {
            sequences: Sequences::from_lengths(lengths),
            cached: None,
            rope_lengths,
            segments: Segments::new(ids.len(), segments)?
                .with_dropout_rows(dropout_rows)?
                .with_loss_scales(loss_scales)?,
            draws,
            targets,
            ids,
        },
        targets: ranges,
    })
}

/// A sample as its loss sees it.
fn completion(sample: &Sample, index: usize, preference: TaskPreference<'_>) -> Completion {
    let targets = sample.num_targets();
    Completion {
        role: match sample.preferred {
            Some(true) => CompletionRole::Chosen,
            Some(false) => CompletionRole::Rejected,
            None => CompletionRole::Unrelated,
        },
        prompt_targets: trained_targets(preference.loss, sample) - targets,
        targets,
        reference: preference.references.get(index).copied().unwrap_or(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights are as large as `float16` can take through the layers; scales restore a weight of one over the
    /// targets.
    #[test]
    fn targets_weigh_between_one_and_two_and_loss_scales_make_up_for_it() {
        let sample = Sample {
            ids: vec![1, 2, 3, 4],
            is_target: vec![false, false, true, true],
            preferred: None,
        };
        for step_targets in [2, 3, 1000, 4096, 12_345] {
            let task = TaskRows {
                slot: Some(0),
                samples: vec![&sample],
                first_sample: 0,
                max_seq_len: 8,
                longest: 4,
                step_targets,
                label_smoothing: 0.0,
                preference: None,
                contrast: None,
            };
            let batch = assemble(&[task], None).expect("in order").microbatch;
            let [scale] = *batch.segments.loss_scales() else {
                panic!("one segment");
            };
            assert_eq!(
                scale.log2().fract().to_bits(),
                0,
                "{scale} is a power of two"
            );
            for &weight in &batch.targets.weights {
                assert!((1.0..2.0).contains(&weight), "{weight}");
                let expected = (1.0 / step_targets as f64) as f32;
                assert_eq!((weight / scale).to_bits(), expected.to_bits());
            }
        }
    }
}
