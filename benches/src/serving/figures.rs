use serde::Serialize;

/// Answers to the requests of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServingMeasurement {
    /// Name of the model's shape.
    pub shape: String,
    /// Type of frozen weights and activations.
    pub dtype: &'static str,
    /// `nf4` if linear layers are in NF4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<&'static str>,
    /// Which request starts next.
    pub policy: &'static str,
    /// Adapters that requests name; with 0 all are for the base model.
    pub adapters: usize,
    /// Rank of each.
    pub ranks: Vec<usize>,
    /// Adapters that train meanwhile.
    pub trained_adapters: usize,
    /// Requests of the trace.
    pub requests: usize,
    /// Those that the policy refused.
    pub refused: usize,
    /// Tenants that send them.
    pub tenants: usize,
    /// Seconds from the first arrival to the last token.
    pub seconds: f64,
    /// Tokens of the prompts that were answered.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub answer_tokens: u64,
    /// Tokens of answers in a second.
    pub tokens_per_second: f64,
    /// Seconds from arrival to the first token.
    pub first_token_seconds: Option<Percentiles>,
    /// Mean seconds between the tokens of a request; `None` if no answer has two.
    pub token_seconds: Option<Percentiles>,
    /// The part of all requests whose times are within both targets. One that was refused is not.
    pub attainment: f64,
    /// VTC's measure: the largest difference of service of two tenants in a span of time in which both have requests
    /// without a token. A token of a prompt counts 1, one of an answer 2.
    pub fairness_gap: u64,
    /// Its bound under virtual token counters (theorem 4.4 of VTC): twice the cost of the longest prompt or of all tokens
    /// that run at a time, whichever is larger.
    pub fairness_bound: u64,
    /// How often a running request gave its memory up.
    pub preemptions: u64,
    /// Tokens that trained in a second meanwhile.
    pub trained_tokens_per_second: Option<f64>,
    /// The same without requests.
    pub trained_alone_tokens_per_second: Option<f64>,
}

/// Of some values, those that half, nine tenths and 99 hundredths do not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half of them.
    pub p50: f64,
    /// Nine tenths.
    pub p90: f64,
    /// All but a hundredth.
    pub p99: f64,
}

impl Percentiles {
    /// `None` without values.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |share: f64| {
            values[((values.len() as f64 * share).ceil() as usize).clamp(1, last + 1) - 1]
        };
        Some(Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
        })
    }
}

/// The times of a request, in seconds after the first arrival.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) arrival: f64,
    pub(super) first: f64,
    pub(super) last: f64,
    /// Tokens of the answer; 0 if it was refused.
    pub(super) tokens: usize,
}

impl Times {
    pub(super) fn first_token(&self) -> Option<f64> {
        (self.tokens > 0).then_some(self.first - self.arrival)
    }

    pub(super) fn between_tokens(&self) -> Option<f64> {
        (self.tokens > 1).then(|| (self.last - self.first) / (self.tokens - 1) as f64)
    }

    /// True if it was answered within the targets.
    pub(super) fn attains(&self, first_token: f64, token: f64) -> bool {
        let is_soon = self
            .first_token()
            .is_some_and(|seconds| seconds <= first_token);
        is_soon && self.between_tokens().is_none_or(|seconds| seconds <= token)
    }
}

#[cfg(test)]
mod tests {
    use super::{Percentiles, Times};

    #[test]
    fn percentiles_are_values_that_occur() {
        let found = Percentiles::of((1..=200).rev().map(f64::from));
        let expected = Percentiles {
            p50: 100.0,
            p90: 180.0,
            p99: 198.0,
        };
        assert_eq!(found, Some(expected));
        assert_eq!(
            Percentiles::of([7.0].into_iter()).map(|of| of.p99),
            Some(7.0)
        );
        assert_eq!(Percentiles::of(std::iter::empty()), None);
    }

    #[test]
    fn a_request_attains_both_targets_or_none() {
        let times = Times {
            arrival: 1.0,
            first: 2.0,
            last: 6.0,
            tokens: 5,
        };
        assert_eq!(
            (times.first_token(), times.between_tokens()),
            (Some(1.0), Some(1.0))
        );
        assert!(times.attains(1.0, 1.0) && !times.attains(0.9, 1.0) && !times.attains(1.0, 0.9));
        let refused = Times { tokens: 0, ..times };
        assert!(!refused.attains(9.0, 9.0));
        let short = Times { tokens: 1, ..times };
        assert!(short.attains(1.0, 0.0));
    }
}
