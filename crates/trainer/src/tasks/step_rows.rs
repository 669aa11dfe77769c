//! The rows of a step as sequences, in batches.

use std::ops::Range;

use loraloom_config::{LossType, PreferenceLoss};
use loraloom_data::{Sample, Samples};

use super::{
    references::{References, SequenceId},
    task::{SubmittedStep, Task},
};
use crate::{batch::trained_targets, error::Result};

/// A sequence of a batch.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) sample: Sample,
}

/// Rows of a batch, which has its own estimate of KTO's divergence.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The sequences of each row.
    rows: Vec<Vec<Sequence>>,
    /// Completions with the prompts of other rows.
    unrelated: Vec<Sequence>,
}

/// Sequences of a task that go through the stages together.
#[derive(Debug)]
pub(crate) struct RowBatch {
    pub(crate) samples: Vec<Sample>,
    /// Log-probabilities of the reference, for losses with one: NaN if it is not known.
    pub(crate) references: Vec<f32>,
    /// Tokens of the longest sequence of the batch that these are of.
    pub(crate) longest: usize,
}

/// The rows of a step, or of a part of it, in micro-batches.
#[derive(Debug)]
pub(crate) struct StepRows {
    pub(crate) step: SubmittedStep,
    /// The micro-batches of the part.
    pub(crate) microbatches: Vec<RowBatch>,
    /// Targets of chosen samples in the whole step, if the loss is a preference.
    pub(crate) step_chosen_targets: usize,
    /// Number of samples of the step before those of the part.
    pub(crate) first_sample: usize,
}

/// True if a loss needs completions of other prompts: it is over a batch as a whole, which has one micro-batch.
pub(crate) fn estimates_divergence(preference: Option<&PreferenceLoss>) -> bool {
    matches!(preference, Some(PreferenceLoss::Kto(kto)) if kto.loss == LossType::Kto)
}

impl Task {
    /// The rows of its next step, or of the next part of it, with every batch in `split` micro-batches. Step and
    /// micro-batches are functions of the task and its step number, for any number of parts.
    ///
    /// # Errors
    /// If rows that exceed memory cannot be read.
    pub(crate) fn next_rows(&self, split: usize) -> Result<StepRows> {
        let step = self.submitted.steps();
        let references = self.known_references();
        let most = self.microbatch_rows(split);
        let mut all: Vec<RowBatch> = Vec::new();
        for batch in self.batches(step) {
            all.extend(batch?.cut(most, references));
        }
        let part = self.submitted.next(all.len(), self.parts);
        let samples = || all.iter().flat_map(|batch| &batch.samples);
        let step_tokens = tokens_of(samples());
        let related = |sample: &&Sample| self.preference.is_none() || sample.preferred.is_some();
        let step_target_tokens = samples().filter(related).map(Sample::num_targets).sum();
        let chosen = samples().filter(|sample| sample.preferred == Some(true));
        let chosen = self.preference.as_ref().map(|loss| {
            let targets = chosen.map(|sample| trained_targets(loss, sample));
            targets.sum()
        });
        let before = all[..part.microbatches.start].iter();
        let first_sample = before.map(|batch| batch.samples.len()).sum();
        let microbatches: Vec<RowBatch> = all.drain(part.microbatches.clone()).collect();
        Ok(StepRows {
            step: SubmittedStep {
                task: self.id,
                name: self.config.name.clone(),
                step: step + 1,
                learning_rate: self.learning_rate(),
                tokens: tokens_of(microbatches.iter().flat_map(|batch| &batch.samples)),
                step_target_tokens,
                step_rows: self.order.num_rows(step),
                step_tokens,
                part,
            },
            first_sample,
            microbatches,
            step_chosen_targets: chosen.unwrap_or(0),
        })
    }

    /// The batches of a step, counted from 0.
    pub(crate) fn batches(&self, step: usize) -> impl Iterator<Item = Result<Batch>> {
        self.batches_of(self.order.rows(step), self.train_rows(), false)
    }

    /// Batches of validation rows.
    pub(crate) fn validation_batches(&self) -> impl Iterator<Item = Result<Batch>> {
        let rows = self.validation_rows().unwrap_or(self.train_rows());
        let count = self.validation_rows().map_or(0, Samples::rows);
        self.batches_of((0..count).collect(), rows, true)
    }

    fn batches_of(
        &self,
        rows: Vec<usize>,
        from: &Samples,
        is_validation: bool,
    ) -> impl Iterator<Item = Result<Batch>> {
        let (preference, longest) = (self.preference.as_ref(), self.config.train.max_seq_len);
        let size = self.batch_rows().max(1);
        let starts = (0..rows.len()).step_by(size);
        starts.map(move |start| {
            let rows = &rows[start..rows.len().min(start + size)];
            Batch::read(rows, from, is_validation, preference, longest)
        })
    }

    /// The known values of its reference, if its loss compares with one.
    pub(crate) fn known_references(&self) -> Option<&References> {
        let compares = self.config.objective.has_reference();
        compares.then_some(&*self.references)
    }

    /// The next steps whose references are computed now: all remaining ones if that is necessary or asked for, otherwise
    /// at least `most`; and whether those of the validation rows are.
    pub(crate) fn refers_ahead(&self, most: usize) -> (Range<usize>, bool) {
        let begin = self.submitted.steps();
        if self.known_references().is_none() || self.has_all_references {
            return (begin..begin, false);
        }
        if self.refers_to_all() {
            return (begin..self.total_steps, self.validation_rows().is_some());
        }
        let validates = self.validation_rows().is_some() && !self.has_validation_references;
        (begin..self.total_steps.min(begin + most), validates)
    }

    /// True if the references of all steps are computed before the next one.
    pub(crate) fn refers_to_all(&self) -> bool {
        let in_advance = self.config.objective.precompute_ref_log_probs == Some(true);
        in_advance || self.reference.is_some()
    }

    /// Sequences of a batch whose reference is not known.
    pub(crate) fn unknown(&self, batch: Batch) -> Vec<Sequence> {
        let unknown = |one: &Sequence| self.references.get(one.id).is_none();
        batch.sequences().filter(unknown).collect()
    }
}

impl Batch {
    /// Reads rows.
    ///
    /// # Errors
    /// If rows that exceed memory cannot be read.
    pub(crate) fn read(
        rows: &[usize],
        from: &Samples,
        is_validation: bool,
        preference: Option<&PreferenceLoss>,
        max_seq_len: usize,
    ) -> Result<Self> {
        let per_row = from.per_row();
        let read = |&row: &usize| -> Result<Vec<Sequence>> {
            let samples = (row * per_row..).zip(from.row(row)?);
            let sequences = samples.map(|(index, sample)| Sequence {
                id: SequenceId {
                    is_validation,
                    prompt: index,
                    completion: index,
                },
                sample,
            });
            Ok(sequences.collect())
        };
        let rows = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
        let unrelated = if estimates_divergence(preference) {
            unrelated(&rows, max_seq_len)
        } else {
            Vec::new()
        };
        Ok(Self { rows, unrelated })
    }

    /// All sequences.
    pub(crate) fn sequences(self) -> impl Iterator<Item = Sequence> {
        self.rows.into_iter().flatten().chain(self.unrelated)
    }

    /// Micro-batches of at most `most` rows.
    pub(crate) fn cut(self, most: usize, references: Option<&References>) -> Vec<RowBatch> {
        let Self { rows, unrelated } = self;
        let lengths = rows.iter().flatten().chain(&unrelated);
        let longest = lengths.map(|one| one.sample.len()).max().unwrap_or(0);
        let reference = |one: &Sequence| Some(references?.get(one.id).unwrap_or(f32::NAN));
        let batch = |rows: &[Vec<Sequence>]| {
            let sequences = rows.iter().flatten().chain(&unrelated);
            RowBatch {
                samples: sequences.clone().map(|one| one.sample.clone()).collect(),
                references: sequences.filter_map(reference).collect(),
                longest,
            }
        };
        rows.chunks(most.max(1)).map(batch).collect()
    }
}

fn tokens_of<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> usize {
    samples.into_iter().map(Sample::len).sum()
}

/// The completion of each row after the prompt of the next one, as in TRL.
fn unrelated(rows: &[Vec<Sequence>], max_seq_len: usize) -> Vec<Sequence> {
    let one = |row: usize| rows[row].first();
    let pairs = (0..rows.len()).map(|row| (row, (row + rows.len() - 1) % rows.len()));
    let sequences = pairs.filter_map(|(prompt, completion)| {
        let (prompt, completion) = (one(prompt)?, one(completion)?);
        let sample = prompt
            .sample
            .with_completion(&completion.sample, max_seq_len);
        Some(Sequence {
            id: SequenceId {
                completion: completion.id.completion,
                ..prompt.id
            },
            sample,
        })
    });
    sequences.collect()
}

#[cfg(test)]
mod tests {
    use loraloom_config::{Kto, LossType, PreferenceLoss};
    use loraloom_data::{Sample, Samples};

    use super::Batch;
    use crate::tasks::references::References;

    fn samples(per_row: usize) -> Samples {
        let mut samples = Samples::default().with_per_row(per_row);
        for index in 0..8_u32 {
            samples
                .push(&Sample {
                    ids: vec![index, 100 + index, 200 + index],
                    is_target: vec![false, false, true],
                    preferred: Some(index % 2 == 0),
                })
                .expect("kept");
        }
        samples
    }

    #[test]
    fn both_sides_of_a_pair_are_in_one_micro_batch() {
        let batch = Batch::read(&[3, 0, 1], &samples(2), false, None, 9).expect("rows");
        let known = References::default();
        for one in Batch::read(&[0, 1], &samples(2), false, None, 9)
            .expect("rows")
            .sequences()
        {
            known.insert(one.id, one.id.completion as f32);
        }
        let cut = batch.cut(2, Some(&known));
        let firsts = |index: usize| -> Vec<u32> {
            cut[index]
                .samples
                .iter()
                .map(|sample| sample.ids[0])
                .collect()
        };
        assert_eq!((firsts(0), firsts(1)), (vec![6, 7, 0, 1], vec![2, 3]));
        assert!(cut[0].references[..2].iter().all(|one| one.is_nan()));
        assert_eq!(cut[0].references[2..], [0.0, 1.0]);
        assert_eq!(cut[1].references, [2.0, 3.0]);
    }

    #[test]
    fn a_prompt_has_the_completion_of_the_row_before_it() {
        let kto = PreferenceLoss::Kto(Kto {
            loss: LossType::Kto,
            beta: 0.1,
            desirable_weight: 1.0,
            undesirable_weight: 1.0,
        });
        let batch = Batch::read(&[4, 2, 7], &samples(1), false, Some(&kto), 3).expect("rows");
        let cut = batch.cut(3, None);
        let ids: Vec<_> = cut[0]
            .samples
            .iter()
            .map(|sample| sample.ids.clone())
            .collect();
        assert_eq!(ids[3..], [[4, 104, 207], [2, 102, 204], [7, 107, 202]]);
        assert!(
            cut[0].samples[3..]
                .iter()
                .all(|sample| sample.preferred.is_none())
        );
        assert!(cut[0].references.is_empty());
    }
}
