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
    /// The token at `place` of an answer, given the logits and all tokens before it.
    pub(crate) fn pick(&self, logits: &[f32], before: &[u32], place: usize) -> u32 {
        let penalised = self.penalised(logits, before);
        let logits = penalised.as_deref().unwrap_or(logits);
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
        if self.temperature <= 0.0 {
            return tokens.min_by(likelier).unwrap_or(0) as u32;
        }
        let mut order: Vec<usize> = tokens.collect();
        if (1..order.len()).contains(&self.top_k) {
            order.select_nth_unstable_by(self.top_k - 1, likelier);
            order.truncate(self.top_k);
        }
        order.sort_unstable_by(likelier);
        let largest = order.first().map_or(0.0, |&token| f64::from(value(token)));
        let weight = |token: usize| ((f64::from(value(token)) - largest) / self.temperature).exp();
        let weights = order.iter().map(|&token| weight(token));
        let weights: Vec<f64> = weights.take_while(|&weight| weight >= self.min_p).collect();
        let total: f64 = weights.iter().sum();
        let (mut kept, mut nucleus) = (0.0, 0);
        while nucleus < weights.len() && (nucleus == 0 || kept < self.top_p * total) {
            kept += weights[nucleus];
            nucleus += 1;
        }
        let mut draw = self.uniform(place) * kept;
        for (&token, weight) in order[..nucleus].iter().zip(&weights) {
            draw -= weight;
            if draw < 0.0 {
                return token as u32;
            }
        }
        order.first().map_or(0, |&token| token as u32)
    }

    /// `None` without a penalty.
    fn penalised(&self, logits: &[f32], before: &[u32]) -> Option<Vec<f32>> {
        let penalty = self.repetition_penalty as f32;
        if (penalty - 1.0).abs() < f32::EPSILON {
            return None;
        }
        let mut all = logits.to_vec();
        for &token in before {
            let token = token as usize;
            if let (Some(logit), Some(&old)) = (all.get_mut(token), logits.get(token)) {
                *logit = if old > 0.0 {
                    old / penalty
                } else {
                    old * penalty
                };
            }
        }
        Some(all)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(temperature: f64) -> Sampling {
        Sampling {
            temperature,
            ..Sampling::default()
        }
    }

    fn picks(sampling: &Sampling, logits: &[f32]) -> Vec<u32> {
        (0..10_000)
            .map(|place| sampling.pick(logits, &[], place))
            .collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_likeliest() {
        assert_eq!(at(0.0).pick(&[0.0, 2.0, f32::NAN, 2.0], &[], 0), 1);
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
        assert_eq!(sampling.pick(&[2.0, 2.9], &[1, 1], 0), 0);
        assert_eq!(sampling.pick(&[2.0, 3.1], &[1, 1], 0), 1);
        assert_eq!(sampling.pick(&[-2.0, -1.4], &[1], 0), 0);
        assert_eq!(sampling.pick(&[-2.0, -1.3], &[1], 0), 1);
        assert_eq!(sampling.pick(&[1.0, 0.5], &[9], 0), 0);
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
