//! The losses over preferences, with all their constants.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use crate::alternatives::OneOrMany;

/// Variant of a loss, by its name in TRL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// Logistic.
    Sigmoid,
    /// Logistic, with labels that are wrong with probability `label_smoothing` (arXiv 2403.00409).
    Robust,
    /// Hinge (arXiv 2305.10425).
    Hinge,
    /// Squared distance from a margin (arXiv 2310.12036).
    Ipo,
    /// Anchored, for completions that are better than the model's (arXiv 2408.06266).
    ApoZero,
    /// Anchored, for completions that are worse than the model's.
    ApoDown,
    /// Cross-entropy of the chosen completion.
    Sft,
    /// Kahneman-Tversky.
    Kto,
    /// `apo_zero` of rows with a label.
    ApoZeroUnpaired,
}

/// A loss over completions, with all its constants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PreferenceLoss {
    /// Direct Preference Optimization.
    Dpo(Dpo),
    /// Kahneman-Tversky Optimization.
    Kto(Kto),
    /// Odds Ratio Preference Optimization.
    Orpo(Orpo),
    /// Contrastive Preference Optimization, and SimPO.
    Cpo(Cpo),
}

/// Losses of `dpo`, which are added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dpo {
    /// Variants and their factors.
    pub losses: Vec<(LossType, f64)>,
    /// Strength of the preference.
    pub beta: f64,
    /// Probability that a preference is wrong, of the variant `robust`.
    pub label_smoothing: f64,
}

/// Loss of `kto`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kto {
    /// Variant.
    pub loss: LossType,
    /// Strength of the preference.
    pub beta: f64,
    /// Weight of rows whose label is true.
    pub desirable_weight: f64,
    /// Weight of rows whose label is false.
    pub undesirable_weight: f64,
}

/// Loss of `orpo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Orpo {
    /// Weight of the odds ratio.
    pub beta: f64,
}

/// Loss of `cpo` and `simpo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cpo {
    /// Variant; `None` is SimPO's.
    pub loss: Option<LossType>,
    /// Strength of the preference.
    pub beta: f64,
    /// Probability that a preference is wrong.
    pub label_smoothing: f64,
    /// Weight of the cross-entropy of chosen completions.
    pub cpo_alpha: f64,
    /// Target margin of the reward, of SimPO.
    pub simpo_gamma: f64,
}

/// The loss of `cit` over the hidden states of texts and their paraphrases.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Contrast {
    /// Its largest weight.
    pub lambda: f64,
    /// Divisor of the similarities.
    pub temperature: f64,
}

impl LossType {
    const ALL: [Self; 9] = [
        Self::Sigmoid,
        Self::Robust,
        Self::Hinge,
        Self::Ipo,
        Self::ApoZero,
        Self::ApoDown,
        Self::Sft,
        Self::Kto,
        Self::ApoZeroUnpaired,
    ];

    /// The variant with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sigmoid => "sigmoid",
            Self::Robust => "robust",
            Self::Hinge => "hinge",
            Self::Ipo => "ipo",
            Self::ApoZero => "apo_zero",
            Self::ApoDown => "apo_down",
            Self::Sft => "sft",
            Self::Kto => "kto",
            Self::ApoZeroUnpaired => "apo_zero_unpaired",
        }
    }
}

/// Reads one variant or a list of them.
pub(crate) fn loss_types<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<LossType>>, D::Error> {
    let named = |name: &String| {
        LossType::named(name).ok_or_else(|| {
            let names = LossType::ALL.map(LossType::name).join(", ");
            D::Error::custom(format_args!("unknown loss `{name}`: expected {names}"))
        })
    };
    let items = Option::<OneOrMany>::deserialize(from)?;
    let types = items.map(|items| items.items().iter().map(named).collect());
    types.transpose()
}
