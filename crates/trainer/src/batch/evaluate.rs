use loraloom_data::{Sample, Samples};
use loraloom_pipeline::Pipeline;

use super::assemble::{TaskRows, assemble};
use crate::error::Result;

/// Sums over the target tokens of rows, except those of rejected completions, with one adapter or with the base model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// Sum of their cross-entropies, in nats.
    pub loss_sum: f64,
    /// Number of them.
    pub targets: usize,
    /// Targets that were the likeliest token.
    pub correct: usize,
    /// Of each completion with a preference, in their order: whether it is preferred, and its log-probability.
    pub preferences: Vec<(bool, f64)>,
}

impl Score {
    /// Mean cross-entropy of a target token, in nats.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.targets as f64
    }

    /// The exponential of the loss.
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }

    /// Share of the target tokens that were the likeliest token.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.targets as f64
    }

    fn add(&mut self, sample: &Sample, losses: &[f32], correct: &[bool]) {
        let loss = losses.iter().copied().map(f64::from).sum::<f64>();
        self.preferences
            .extend(sample.preferred.map(|preferred| (preferred, -loss)));
        if sample.preferred != Some(false) {
            self.targets += losses.len();
            self.loss_sum += loss;
            self.correct += correct.iter().filter(|&&correct| correct).count();
        }
    }
}

/// Scores rows with several slots of a group (`None` is the base model), without dropout. A pass has at most
/// `at_once` sequences of all slots together; `done` receives their number after each pass.
///
/// The losses have this label smoothing.
///
/// Except for rounding, the score of a row does not depend on its neighbours: dynamic rope uses the row's own length.
pub(crate) fn evaluate(
    pipeline: &Pipeline,
    rows: &Samples,
    (group, slots): (usize, &[Option<usize>]),
    at_once: usize,
    label_smoothing: f64,
    done: &mut dyn FnMut(usize),
) -> Result<Vec<Score>> {
    let mut scores = vec![Score::default(); slots.len()];
    for rows in rows.chunks((at_once / slots.len()).max(1)) {
        let rows = rows?;
        let samples: Vec<&Sample> = rows.iter().collect();
        let lengths: Vec<usize> = rows.iter().map(Sample::len).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let part = |&slot: &Option<usize>| TaskRows {
            slot,
            samples: samples.clone(),
            longest,
            first_sample: 0,
            max_seq_len: longest,
            step_targets: 1,
            label_smoothing,
            preference: None,
            contrast: None,
        };
        for (slots, scores) in slots.chunks(at_once).zip(scores.chunks_mut(at_once)) {
            let parts: Vec<TaskRows<'_>> = slots.iter().map(part).collect();
            let mut batch = assemble(&parts, None)?.microbatch;
            batch.rope_lengths = lengths.repeat(slots.len());
            let (losses, correct) = pipeline.target_scores(group, &batch)?;
            let targets = losses.len() / slots.len();
            let each = losses
                .chunks(targets.max(1))
                .zip(correct.chunks(targets.max(1)));
            for (score, (mut losses, mut correct)) in scores.iter_mut().zip(each) {
                for sample in &rows {
                    let (of_sample, right);
                    let count = sample.num_targets().min(losses.len());
                    (of_sample, losses) = losses.split_at(count);
                    (right, correct) = correct.split_at(count);
                    score.add(sample, of_sample, right);
                }
            }
            done(batch.sequences.len());
        }
    }
    Ok(scores)
}

/// Log-probabilities of the targets of samples, with a slot of a group (`None` is the base model), without dropout.
pub(crate) fn log_probs(
    pipeline: &Pipeline,
    (group, slot): (usize, Option<usize>),
    samples: &[&Sample],
) -> Result<Vec<f32>> {
    let lengths: Vec<usize> = samples.iter().map(|sample| sample.len()).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    // Each by itself, so that its bits do not depend on the others.
    let rows = samples.iter().map(|&sample| TaskRows {
        slot,
        samples: vec![sample],
        longest,
        first_sample: 0,
        max_seq_len: longest,
        step_targets: 1,
        label_smoothing: 0.0,
        preference: None,
        contrast: None,
    });
    let mut batch = assemble(&rows.collect::<Vec<_>>(), None)?.microbatch;
    batch.rope_lengths = lengths;
    let (losses, _) = pipeline.target_scores(group, &batch)?;
    let mut losses = &losses[..];
    let log_prob = |sample: &&Sample| {
        let part;
        (part, losses) = losses.split_at(sample.num_targets().min(losses.len()));
        -part.iter().copied().map(f64::from).sum::<f64>() as f32
    };
    Ok(samples.iter().map(log_prob).collect())
}
