//! Picking the next tokens: options, and the reference in host memory.
//!
//! Tokens are ordered by their logits, equal ones by their numbers. Every option keeps a prefix of this order, and so is
//! the draw: its token is the last of the shortest prefix whose probabilities exceed the drawn number.

use burn::{
    backend::{Backend, Dispatch, TensorMetadata, tensor::FloatTensor},
    tensor::{Shape, Tensor, TensorData, read_sync},
};

use super::{DecoderOps, RowLogProbs};
use crate::{ModelError, to_host};

/// How tokens are picked. The options apply in vLLM's order: repetition penalty, temperature, `min_p`, `top_k`, `top_p`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// Samples from this many likeliest tokens; 0 is all.
    pub top_k: usize,
    /// Samples from the likeliest tokens that together have this probability; 1 is all.
    pub top_p: f64,
    /// Samples from tokens with at least this probability relative to that of the likeliest; 0 is all.
    pub min_p: f64,
    /// Divides positive logits of tokens that are in the prompt or the answer, and multiplies negative ones (Keskar et
    /// al. 2019, arXiv 1909.05858, section 4.1); 1 is none.
    pub repetition_penalty: f64,
    /// Seed of the random numbers. A token's number depends on the seed and its place in the answer.
    pub seed: u64,
}

impl Default for Sampling {
    /// The likeliest token.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Options and random number of the token at `place` of an answer after the tokens `before` it. The `top` likeliest
    /// tokens are found besides.
    pub fn row(&self, before: &[u32], place: usize, top: usize) -> SampledRow {
        let mut penalised = Vec::new();
        if (self.repetition_penalty - 1.0).abs() > f64::from(f32::EPSILON) {
            penalised.extend_from_slice(before);
            penalised.sort_unstable();
            penalised.dedup();
        }
        SampledRow {
            sampling: self.clone(),
            penalised,
            draw: self.uniform(place),
            top,
        }
    }

    /// splitmix64 (Steele, Lea, Flood, OOPSLA'14), in `[0, 1)`. Every sequence draws the same numbers, so that adapters
    /// differ only by their weights.
    fn uniform(&self, place: usize) -> f64 {
        let steps = (place as u64).wrapping_add(1);
        let mut z = self
            .seed
            .wrapping_add(steps.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// How a row of logits gives a token.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledRow {
    /// The options.
    pub sampling: Sampling,
    /// Tokens whose logits are penalised, each once.
    pub penalised: Vec<u32>,
    /// A random number in `[0, 1)`.
    pub draw: f64,
    /// Number of the likeliest tokens to return besides.
    pub top: usize,
}

/// A token that was picked.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Its number.
    pub id: u32,
    /// Its log-probability in nats, before temperature and the other options.
    pub log_prob: f32,
    /// The likeliest tokens with their log-probabilities, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// Picks a token for each row of logits `[rows, vocabulary]`, on the device of these.
///
/// # Errors
/// If the device fails.
pub fn sample(logits: Tensor<2>, rows: &[SampledRow]) -> Result<Vec<Sampled>, ModelError> {
    let [_, vocabulary] = logits.dims();
    let width = SampledRow::width(rows, vocabulary);
    let found = Dispatch::sample(logits.into_dispatch(), rows.to_vec());
    let found = to_host(Tensor::<2>::from_dispatch(found))?;
    let sampled = |(row, found): (&SampledRow, &[f32])| {
        let (ids, log_probs) = found.split_at(width / 2);
        let mut pairs = ids
            .iter()
            .map(|&id| id as u32)
            .zip(log_probs.iter().copied());
        let (id, log_prob) = pairs.next().unwrap_or_default();
        Sampled {
            id,
            log_prob,
            top: pairs.take(row.top).collect(),
        }
    };
    Ok(rows
        .iter()
        .zip(found.chunks_exact(width))
        .map(sampled)
        .collect())
}

/// The reference: tokens as numbers and their log-probabilities, `[rows, 2 · (1 + top)]` in `float32`, first of the picked
/// token and then of the likeliest. A `float32` has every number up to 2²⁴.
pub(super) fn in_host_memory<B: Backend>(
    logits: FloatTensor<B>,
    rows: &[SampledRow],
) -> FloatTensor<B> {
    let (device, [_, vocabulary]) = (logits.device(), logits.shape().dims());
    let width = SampledRow::width(rows, vocabulary);
    let data = read_sync(B::float_into_data(logits));
    let data = data.map(|data| data.convert::<f32>().try_into_vec::<f32>());
    let logits = data.ok().and_then(Result::ok).unwrap_or_default();
    let mut found = Vec::with_capacity(rows.len() * width);
    for (row, logits) in rows.iter().zip(logits.chunks_exact(vocabulary)) {
        let log_probs = RowLogProbs::new(logits);
        let mut ids = vec![row.pick(logits)];
        ids.extend(likeliest(logits, width / 2 - 1));
        found.extend(ids.iter().map(|&id| id as f32));
        found.extend(ids.iter().map(|&id| log_probs.of(logits[id as usize])));
    }
    let shape = Shape::new([rows.len(), width]);
    B::float_from_data(TensorData::new(found, shape), &device)
}

/// The likeliest tokens, likeliest first.
fn likeliest(logits: &[f32], count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let likelier = |a: &u32, b: &u32| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    if count == 0 {
        return Vec::new();
    }
    if count < order.len() {
        order.select_nth_unstable_by(count - 1, likelier);
        order.truncate(count);
    }
    order.sort_unstable_by(likelier);
    order
}

impl SampledRow {
    /// Numbers of a row of results: the picked token and the most that any row wants besides, each with its
    /// log-probability.
    pub(super) fn width(rows: &[Self], vocabulary: usize) -> usize {
        let top = rows.iter().map(|row| row.top).max().unwrap_or(0);
        2 * (1 + top.min(vocabulary))
    }

    fn pick(&self, logits: &[f32]) -> u32 {
        let penalised = self.penalised(logits);
        let logits = penalised.as_deref().unwrap_or(logits);
        let sampling = &self.sampling;
        // The first of equal logits wins; NaN sorts as the least likely.
        let value = |token: usize| {
            let logit = logits[token];
            if logit.is_nan() {
                f32::NEG_INFINITY
            } else {
                logit
            }
        };
        let likelier = |a: &usize, b: &usize| value(*b).total_cmp(&value(*a)).then(a.cmp(b));
        let tokens = 0..logits.len();
        if sampling.temperature <= 0.0 {
            return tokens.min_by(likelier).unwrap_or(0) as u32;
        }
        let mut order: Vec<usize> = tokens.collect();
        if (1..order.len()).contains(&sampling.top_k) {
            order.select_nth_unstable_by(sampling.top_k - 1, likelier);
            order.truncate(sampling.top_k);
        }
        order.sort_unstable_by(likelier);
        let largest = order.first().map_or(0.0, |&token| f64::from(value(token)));
        let weight =
            |token: usize| ((f64::from(value(token)) - largest) / sampling.temperature).exp();
        let weights = order.iter().map(|&token| weight(token));
        let weights: Vec<f64> = weights
            .take_while(|&weight| weight >= sampling.min_p)
            .collect();
        let total: f64 = weights.iter().sum();
        let (mut kept, mut nucleus) = (0.0, 0);
        while nucleus < weights.len() && (nucleus == 0 || kept < sampling.top_p * total) {
            kept += weights[nucleus];
            nucleus += 1;
        }
        let mut draw = self.draw * kept;
        for (&token, weight) in order[..nucleus].iter().zip(&weights) {
            draw -= weight;
            if draw < 0.0 {
                return token as u32;
            }
        }
        order.first().map_or(0, |&token| token as u32)
    }

    /// `None` without a penalty.
    fn penalised(&self, logits: &[f32]) -> Option<Vec<f32>> {
        if self.penalised.is_empty() {
            return None;
        }
        let penalty = self.sampling.repetition_penalty as f32;
        let mut all = logits.to_vec();
        for &token in &self.penalised {
            if let Some(logit) = all.get_mut(token as usize) {
                if *logit > 0.0 {
                    *logit /= penalty;
                } else {
                    *logit *= penalty;
                }
            }
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(temperature: f64) -> Sampling {
        Sampling {
            temperature,
            ..Sampling::default()
        }
    }

    fn pick(sampling: &Sampling, logits: &[f32], before: &[u32], place: usize) -> u32 {
        sampling.row(before, place, 0).pick(logits)
    }

    fn picks(sampling: &Sampling, logits: &[f32]) -> Vec<u32> {
        (0..10_000)
            .map(|place| pick(sampling, logits, &[], place))
            .collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_likeliest() {
        assert_eq!(pick(&at(0.0), &[0.0, 2.0, f32::NAN, 2.0], &[], 0), 1);
    }

    #[test]
    fn draws_follow_the_probabilities_at_a_temperature() {
        for (temperature, expected) in [(1.0, 7_500), (0.5, 9_000), (2.0, 6_340)] {
            let picks = picks(&at(temperature), &[0.0, 3f32.ln()]);
            let ones = picks.iter().filter(|&&token| token == 1).count();
            assert!(
                ones.abs_diff(expected) < 250,
                "{ones} of 10000 where {expected} are expected"
            );
        }
    }

    #[test]
    fn the_unlikely_are_excluded() {
        let logits = [3f32.ln(), 5f32.ln(), 2f32.ln()];
        let of = |change: fn(&mut Sampling)| {
            let mut sampling = at(1.0);
            change(&mut sampling);
            let mut found = picks(&sampling, &logits);
            found.sort_unstable();
            found.dedup();
            found
        };
        assert_eq!(of(|_| ()), [0, 1, 2]);
        assert_eq!(of(|sampling| sampling.top_k = 2), [0, 1]);
        assert_eq!(of(|sampling| sampling.top_p = 0.75), [0, 1]);
        assert_eq!(of(|sampling| sampling.top_p = 0.5), [1]);
        assert_eq!(of(|sampling| sampling.min_p = 0.5), [0, 1]);
        assert_eq!(of(|sampling| sampling.min_p = 0.7), [1]);
        // `top_p` is of the tokens that `top_k` leaves: 5 of 8 are more than 0.6.
        assert_eq!(
            of(|sampling| (sampling.top_k, sampling.top_p) = (2, 0.6)),
            [1]
        );
    }

    #[test]
    fn tokens_that_were_there_are_penalised_once() {
        let mut sampling = at(0.0);
        sampling.repetition_penalty = 1.5;
        assert_eq!(pick(&sampling, &[2.0, 2.9], &[1, 1], 0), 0);
        assert_eq!(pick(&sampling, &[2.0, 3.1], &[1, 1], 0), 1);
        assert_eq!(pick(&sampling, &[-2.0, -1.4], &[1], 0), 0);
        assert_eq!(pick(&sampling, &[-2.0, -1.3], &[1], 0), 1);
        assert_eq!(pick(&sampling, &[1.0, 0.5], &[9], 0), 0);
    }

    #[test]
    fn a_draw_depends_on_the_seed_and_the_place() {
        let sampling = at(1.0);
        let other = Sampling {
            seed: 1,
            ..sampling.clone()
        };
        let logits = [0.0; 64];
        assert_eq!(picks(&sampling, &logits), picks(&sampling, &logits));
        assert_ne!(
            picks(&sampling, &logits)[..20],
            picks(&other, &logits)[..20]
        );
        assert_ne!(picks(&sampling, &logits)[0], picks(&sampling, &logits)[1]);
    }
}
