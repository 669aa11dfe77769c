use std::path::Path;

use burn::tensor::Device;
use loraloom_config::DtypeChoice;
use loraloom_model::{LlamaConfig, PeftAdapter};

use super::CheckResults;
use crate::{TrainerError, error::Result, generate::Generator};

/// Texts whose logits are compared.
const PROMPTS: [&str; 3] = [
    "The quick brown fox jumps over the lazy dog.",
    "Question: How many apples are 12 and 30 together?\nAnswer:",
    "def add(first, second):\n    return",
];
/// Most tokens of a prompt.
const LONGEST: usize = 48;
/// Logits that differ by less than this fraction of the largest are equal in float32.
pub(super) const ROUNDING: f32 = 1e-6;

/// Logits of the prompts, one after another.
#[derive(Debug)]
pub(super) struct Logits(Vec<f32>);

/// Ids of the prompts, by the base's tokenizer.
#[derive(Debug)]
pub(super) struct TestPrompts(Vec<Vec<u32>>);

/// Difference between the logits of two models.
#[derive(Debug, Clone, Copy)]
pub(super) struct Distance {
    /// Largest difference.
    pub(super) difference: f32,
    /// Largest of the other's logits.
    pub(super) largest: f32,
}

impl TestPrompts {
    /// Logits of the base alone, and then with each of some adapters, on the CPU in float32.
    pub(super) fn base(
        base: &Path,
        config: &LlamaConfig,
        adapters: &[PeftAdapter],
    ) -> Result<(Self, Vec<Logits>)> {
        let generator = load(base, config, adapters)?;
        let ids = PROMPTS.iter().map(|prompt| {
            let mut ids = generator.encode(prompt)?;
            ids.truncate(LONGEST);
            Ok(ids)
        });
        let prompts = Self(ids.collect::<Result<_>>()?);
        let who = (0..adapters.len()).map(Some);
        let who = std::iter::once(None).chain(who);
        let logits = who.map(|who| prompts.ask(&generator, who));
        let logits = logits.collect::<Result<_>>()?;
        Ok((prompts, logits))
    }

    /// Logits of another model.
    pub(super) fn model(&self, model: &Path) -> Result<Logits> {
        let config = LlamaConfig::from_directory(model)?;
        self.ask(&load(model, &config, &[])?, None)
    }

    fn ask(&self, generator: &Generator, who: Option<usize>) -> Result<Logits> {
        let mut all = Vec::new();
        for ids in &self.0 {
            all.extend(generator.logits(ids, who)?);
        }
        Ok(Logits(all))
    }
}

impl Logits {
    pub(super) fn is_finite(&self) -> bool {
        self.0.iter().all(|logit| logit.is_finite())
    }

    pub(super) fn distance(&self, other: &Self) -> Distance {
        // `f32::max` ignores NaN.
        let larger = |most: f32, value: f32| {
            if value > most || value.is_nan() {
                value
            } else {
                most
            }
        };
        let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0, larger);
        let pairs = self.0.iter().zip(&other.0);
        Distance {
            difference: largest(&mut pairs.map(|(a, b)| (a - b).abs())),
            largest: largest(&mut other.0.iter().map(|logit| logit.abs())),
        }
    }
}

impl Distance {
    /// True if it is at most this fraction of the largest logit.
    pub(super) fn is_within(self, part: f32) -> bool {
        self.difference <= part * self.largest
    }
}

impl std::fmt::Display for Distance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            difference,
            largest,
        } = self;
        if *difference < 1e-3 {
            write!(f, "up to {difference:.1e}")?;
        } else {
            write!(f, "up to {difference:.3}")?;
        }
        write!(f, " (largest logit {largest:.1})")
    }
}

/// Reports why logits could not be computed: a model may lack a tokenizer.
pub(super) fn not_computed(error: &TrainerError, results: &mut CheckResults) {
    if matches!(error, TrainerError::Data(_)) {
        results.unchecked("logits", error.to_string());
    } else {
        results.fails_with("logits", error);
    }
}

/// Reports whether logits are finite and differ from the base's.
pub(super) fn differ(logits: &Logits, base: &Logits, results: &mut CheckResults) {
    let distance = logits.distance(base);
    let prompts = PROMPTS.len();
    if !(logits.is_finite() && base.is_finite()) {
        results.fails(
            "logits",
            format!("not all are finite, on {prompts} prompts"),
        );
    } else if distance.is_within(ROUNDING) {
        let message = format!("equal the base's up to rounding: they differ by {distance}");
        results.fails("logits", message);
    } else {
        let message = format!("differ from the base's by {distance} on {prompts} prompts");
        results.holds("logits", message);
    }
}

fn load(model: &Path, config: &LlamaConfig, adapters: &[PeftAdapter]) -> Result<Generator> {
    let (dtype, device) = (DtypeChoice::Float32, Device::flex());
    Generator::with_adapters(model, config, dtype, adapters, &device)
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, CheckResults, Logits, differ};

    #[test]
    fn what_is_no_number_is_no_proof() {
        let [numbers, others, nan] = [[1.0, 2.0], [1.0, 2.5], [1.0, f32::NAN]]
            .map(Vec::from)
            .map(Logits);
        assert!(numbers.distance(&numbers).is_within(0.0));
        for (one, other) in [(&nan, &nan), (&nan, &numbers), (&numbers, &nan)] {
            assert!(!one.distance(other).is_within(1.0));
            let mut results = CheckResults::default();
            differ(one, other, &mut results);
            assert_eq!(results.0[0].verdict, Verdict::Fails, "{one:?} {other:?}");
        }
        let mut results = CheckResults::default();
        differ(&others, &numbers, &mut results);
        assert_eq!(results.0[0].verdict, Verdict::Holds);
    }
}
