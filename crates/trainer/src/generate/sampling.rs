/// Options of sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// At most this many tokens.
    pub max_new_tokens: usize,
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// Samples from this many likeliest tokens; 0 is all.
    pub top_k: usize,
    /// Samples from the likeliest tokens that together have this probability; 1 is all.
    pub top_p: f64,
    /// Seed of the random numbers.
    pub seed: u64,
    /// True if the prompt is a user's message for the chat template rather than raw text.
    pub chat: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: 64,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
            chat: false,
        }
    }
}

/// Picks tokens of one sequence.
#[derive(Debug, Clone)]
pub(crate) struct Sampler {
    options: GenerateOptions,
    /// State of the random numbers.
    state: u64,
}

impl Sampler {
    /// Every sequence draws the same numbers, so that adapters differ only by their weights.
    pub(crate) fn new(options: &GenerateOptions) -> Self {
        Self {
            options: options.clone(),
            state: options.seed,
        }
    }

    /// Picks the likeliest token.
    pub(crate) fn greedy() -> Self {
        Self::new(&GenerateOptions::default())
    }

    pub(crate) fn pick(&mut self, logits: &[f32]) -> u32 {
        let GenerateOptions {
            temperature,
            top_k,
            top_p,
            ..
        } = self.options;
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // The first of equal logits wins; NaN sorts as the least likely.
        let number = |token: usize| Some(logits[token]).filter(|logit| !logit.is_nan());
        let value = |token: usize| number(token).unwrap_or(f32::NEG_INFINITY);
        let likelier = |a: &usize, b: &usize| value(*b).total_cmp(&value(*a)).then(a.cmp(b));
        if temperature <= 0.0 {
            return order.into_iter().min_by(likelier).unwrap_or(0) as u32;
        }
        order.sort_by(likelier);
        if top_k > 0 {
            order.truncate(top_k);
        }
        let largest = order.first().map_or(0.0, |&token| f64::from(value(token)));
        let weight = |token: usize| ((f64::from(value(token)) - largest) / temperature).exp();
        let weights: Vec<f64> = order.iter().map(|&token| weight(token)).collect();
        let total: f64 = weights.iter().sum();
        let mut kept = 0.0;
        let mut nucleus = 0;
        while nucleus < weights.len() && (nucleus == 0 || kept < top_p * total) {
            kept += weights[nucleus];
            nucleus += 1;
        }
        let mut draw = self.uniform() * kept;
        for (&token, weight) in order[..nucleus].iter().zip(&weights) {
            draw -= weight;
            if draw < 0.0 {
                return token as u32;
            }
        }
        order.first().map_or(0, |&token| token as u32)
    }

    /// splitmix64 (Steele, Lea, Flood, OOPSLA'14), in `[0, 1)`.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f64, top_k: usize, top_p: f64) -> Sampler {
        Sampler::new(&GenerateOptions {
            temperature,
            top_k,
            top_p,
            ..GenerateOptions::default()
        })
    }

    #[test]
    fn greedy_takes_the_first_of_the_likeliest() {
        assert_eq!(Sampler::greedy().pick(&[0.0, 2.0, f32::NAN, 2.0]), 1);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let mut sampler = sampler(1.0, 0, 1.0);
        let logits = [0.0, 3f32.ln()];
        let ones = (0..10_000).filter(|_| sampler.pick(&logits) == 1).count();
        assert!(
            (7_300..7_700).contains(&ones),
            "{ones} of 10000 where 7500 are expected"
        );
    }

    #[test]
    fn top_k_and_top_p_exclude_the_unlikely() {
        let logits = [5f32.ln(), 3f32.ln(), 2f32.ln()];
        for mut sampler in [sampler(1.0, 2, 1.0), sampler(1.0, 0, 0.75)] {
            assert!((0..1000).all(|_| sampler.pick(&logits) != 2));
        }
    }
}
