//! The rows of a step as sequences, in batches.

use loraloom_config::{LossType, Preference};
use loraloom_data::{Sample, Samples};

use super::references::{References, SequenceId};
use crate::error::Result;

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

/// True if a loss needs completions of other prompts.
fn estimates_divergence(preference: Option<&Preference>) -> bool {
    matches!(preference, Some(Preference::Kto(kto)) if kto.loss == LossType::Kto)
}

/// True if a loss is over a batch as a whole, so that it has one micro-batch.
pub(crate) fn is_whole(preference: Option<&Preference>) -> bool {
    estimates_divergence(preference)
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
        preference: Option<&Preference>,
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
    use loraloom_config::{Kto, LossType, Preference};
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
        let kto = Preference::Kto(Kto {
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
