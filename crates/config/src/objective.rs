//! The objective of an adapter: its loss, with TRL's keys and defaults.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    AdapterConfig, Contrast, Cpo, Dpo, Kto, LossType, Orpo, PreferenceLoss, StoppingMetric,
    alternatives::OneOrMany, preference_loss::loss_types,
};

/// Loss of an adapter. The keys and their defaults are TRL's; a key that the type does not have is refused.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping of objective settings"
)]
pub struct ObjectiveSettings {
    /// sft trains on completions or texts; dpo, orpo, cpo and simpo on rows with a chosen and a rejected
    /// completion; kto on rows with a completion and a label; cit on texts with a paraphrase each.
    pub r#type: ObjectiveType,
    /// dpo: sigmoid, robust, hinge, ipo, apo_zero, apo_down or sft, or a list whose losses are added;
    /// kto: kto or apo_zero_unpaired; cpo: sigmoid, hinge or ipo.
    #[serde(
        deserialize_with = "loss_types",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<OneOrMany>")]
    pub loss_type: Option<Vec<LossType>>,
    /// dpo: factor of each loss in `loss_type`; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_weights: Option<Vec<f64>>,
    /// All but sft and cit: strength of the preference; 0.1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta: Option<f64>,
    /// dpo with robust, cpo and simpo: probability that a preference is wrong; 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_smoothing: Option<f64>,
    /// dpo and kto: the model that the adapter is compared with. init is the model with the adapter as it
    /// begins, which without `init_from` is the base model; base is the base model. init by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// dpo and kto: compute the reference's log-probabilities of all rows that training takes before it, instead of as
    /// rows come up for the first time. False by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precompute_ref_log_probs: Option<bool>,
    /// All but sft and cit: train without dropout; true by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_dropout: Option<bool>,
    /// kto: weight of rows whose label is true; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desirable_weight: Option<f64>,
    /// kto: weight of rows whose label is false; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undesirable_weight: Option<f64>,
    /// cpo and simpo: weight of the cross-entropy of chosen completions; by default 1 for cpo and 0 for
    /// simpo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpo_alpha: Option<f64>,
    /// simpo: target margin of the reward; 0.5 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simpo_gamma: Option<f64>,
    /// cit: largest weight of the contrastive loss, which never exceeds the cross-entropy; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lambda: Option<f64>,
    /// cit: divisor of the similarities; 2 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
}

/// Kind of an objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ObjectiveType {
    /// Cross-entropy of the target tokens.
    #[default]
    Sft,
    /// Direct Preference Optimization (arXiv 2305.18290).
    Dpo,
    /// Kahneman-Tversky Optimization (arXiv 2402.01306).
    Kto,
    /// Odds Ratio Preference Optimization (arXiv 2403.07691).
    Orpo,
    /// Contrastive Preference Optimization (arXiv 2401.08417).
    Cpo,
    /// Simple Preference Optimization (arXiv 2405.14734).
    Simpo,
    /// Contrastive Instruction Tuning (arXiv 2402.11138).
    Cit,
}

/// The model that an adapter is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Reference {
    /// The model with the adapter as it begins.
    #[default]
    Init,
    /// The base model.
    Base,
}

/// Kind of the preferences in rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    /// Which of two is better. Every row is two samples, the better one first.
    Pairs,
    /// A completion is good, or it is not.
    Rated,
    /// Two texts that say the same. Every row is two samples, the original first.
    Paraphrases,
}

/// Names of an objective's keys, for those that it has.
const KEYS: [(ObjectiveType, &[&str]); 7] = [
    (ObjectiveType::Sft, &[]),
    (
        ObjectiveType::Dpo,
        &[
            "loss_type",
            "loss_weights",
            "beta",
            "label_smoothing",
            "reference",
            "precompute_ref_log_probs",
            "disable_dropout",
        ],
    ),
    (
        ObjectiveType::Kto,
        &[
            "loss_type",
            "beta",
            "reference",
            "precompute_ref_log_probs",
            "disable_dropout",
            "desirable_weight",
            "undesirable_weight",
        ],
    ),
    (ObjectiveType::Orpo, &["beta", "disable_dropout"]),
    (
        ObjectiveType::Cpo,
        &[
            "loss_type",
            "beta",
            "label_smoothing",
            "disable_dropout",
            "cpo_alpha",
        ],
    ),
    (
        ObjectiveType::Simpo,
        &[
            "beta",
            "label_smoothing",
            "disable_dropout",
            "cpo_alpha",
            "simpo_gamma",
        ],
    ),
    (ObjectiveType::Cit, &["lambda", "temperature"]),
];

/// A key with the problem of its value.
type Invalid = (&'static str, String);

impl ObjectiveSettings {
    /// Preferences that the rows must have.
    pub fn needs(&self) -> Option<Preference> {
        match self.r#type {
            ObjectiveType::Sft => None,
            ObjectiveType::Kto => Some(Preference::Rated),
            ObjectiveType::Cit => Some(Preference::Paraphrases),
            _ => Some(Preference::Pairs),
        }
    }

    /// True if an evaluation has this metric.
    pub(crate) fn has(&self, metric: StoppingMetric) -> bool {
        match metric {
            StoppingMetric::EvalLoss | StoppingMetric::TrainLoss => true,
            StoppingMetric::EvalMargins => {
                matches!(self.needs(), Some(Preference::Pairs | Preference::Rated))
            }
            StoppingMetric::EvalAccuracies => self.needs() == Some(Preference::Pairs),
        }
    }

    /// True if the loss compares with a reference model.
    pub fn has_reference(&self) -> bool {
        matches!(self.r#type, ObjectiveType::Dpo | ObjectiveType::Kto)
    }

    /// True if training has no dropout, whatever the adapter says.
    pub fn disables_dropout(&self) -> bool {
        let compares = !matches!(self.r#type, ObjectiveType::Sft | ObjectiveType::Cit);
        compares && self.disable_dropout.unwrap_or(true)
    }

    /// The loss over paraphrases that is added to the cross-entropy.
    pub fn contrast(&self) -> Option<Contrast> {
        (self.r#type == ObjectiveType::Cit).then(|| Contrast {
            lambda: self.lambda.unwrap_or(1.0),
            temperature: self.temperature.unwrap_or(2.0),
        })
    }

    /// The loss over completions; `None` is the cross-entropy of all targets, with [`contrast`](Self::contrast) if it
    /// has one.
    ///
    /// # Errors
    /// The first key with a value out of its range, or that the objective does not have.
    pub fn loss(&self) -> Result<Option<PreferenceLoss>, Invalid> {
        self.check_keys()?;
        let beta = self.beta.unwrap_or(0.1);
        positive("beta", beta)?;
        let label_smoothing = self.label_smoothing.unwrap_or(0.0);
        if !(0.0..0.5).contains(&label_smoothing) {
            let problem = format!("must be at least 0 and below 0.5, got {label_smoothing}");
            return Err(("label_smoothing", problem));
        }
        let smooths = match self.r#type {
            ObjectiveType::Dpo => {
                let types = self.loss_type.as_deref().unwrap_or_default();
                types.contains(&LossType::Robust)
            }
            ObjectiveType::Cpo => !matches!(
                self.loss_type.as_deref(),
                Some([LossType::Hinge | LossType::Ipo])
            ),
            _ => true,
        };
        if label_smoothing > 0.0 && !smooths {
            let problem = "has no effect on this `loss_type`; remove it";
            return Err(("label_smoothing", problem.to_owned()));
        }
        let simpo = self.r#type == ObjectiveType::Simpo;
        let cpo_alpha = self.cpo_alpha.unwrap_or(if simpo { 0.0 } else { 1.0 });
        let simpo_gamma = self.simpo_gamma.unwrap_or(0.5);
        for (key, value) in [
            ("cpo_alpha", cpo_alpha),
            ("simpo_gamma", simpo_gamma),
            ("desirable_weight", self.desirable_weight.unwrap_or(1.0)),
            ("undesirable_weight", self.undesirable_weight.unwrap_or(1.0)),
        ] {
            not_negative(key, value)?;
        }
        let weights = [self.desirable_weight, self.undesirable_weight];
        if weights == [Some(0.0); 2] {
            let problem = "and desirable_weight are 0: nothing would be learned";
            return Err(("undesirable_weight", problem.to_owned()));
        }
        if let Some(Contrast {
            lambda,
            temperature,
        }) = self.contrast()
        {
            positive("lambda", lambda)?;
            positive("temperature", temperature)?;
        }
        Ok(Some(match self.r#type {
            ObjectiveType::Sft | ObjectiveType::Cit => return Ok(None),
            ObjectiveType::Dpo => PreferenceLoss::Dpo(Dpo {
                losses: self.dpo_losses()?,
                beta,
                label_smoothing,
            }),
            ObjectiveType::Kto => PreferenceLoss::Kto(Kto {
                loss: self.variant(&[LossType::Kto, LossType::ApoZeroUnpaired])?,
                beta,
                desirable_weight: self.desirable_weight.unwrap_or(1.0),
                undesirable_weight: self.undesirable_weight.unwrap_or(1.0),
            }),
            ObjectiveType::Orpo => PreferenceLoss::Orpo(Orpo { beta }),
            ObjectiveType::Cpo | ObjectiveType::Simpo => PreferenceLoss::Cpo(Cpo {
                loss: (!simpo)
                    .then(|| self.variant(&[LossType::Sigmoid, LossType::Hinge, LossType::Ipo]))
                    .transpose()?,
                beta,
                label_smoothing,
                cpo_alpha,
                simpo_gamma,
            }),
        }))
    }

    /// Refuses a key that is set and that the objective does not have.
    fn check_keys(&self) -> Result<(), Invalid> {
        let set = [
            ("loss_type", self.loss_type.is_some()),
            ("loss_weights", self.loss_weights.is_some()),
            ("beta", self.beta.is_some()),
            ("label_smoothing", self.label_smoothing.is_some()),
            ("reference", self.reference.is_some()),
            (
                "precompute_ref_log_probs",
                self.precompute_ref_log_probs.is_some(),
            ),
            ("disable_dropout", self.disable_dropout.is_some()),
            ("desirable_weight", self.desirable_weight.is_some()),
            ("undesirable_weight", self.undesirable_weight.is_some()),
            ("cpo_alpha", self.cpo_alpha.is_some()),
            ("simpo_gamma", self.simpo_gamma.is_some()),
            ("lambda", self.lambda.is_some()),
            ("temperature", self.temperature.is_some()),
        ];
        let (name, keys) = KEYS[self.r#type as usize];
        debug_assert_eq!(name, self.r#type);
        for (key, is_set) in set {
            if is_set && !keys.contains(&key) {
                let name = name.name();
                let problem = if keys.is_empty() {
                    format!("`{name}` has no such key: remove it, or set `type`")
                } else {
                    format!("`{name}` has no such key; it has {}", keys.join(", "))
                };
                return Err((key, problem));
            }
        }
        Ok(())
    }

    /// The only `loss_type`, which must be one of `known`; the first of these by default.
    fn variant(&self, known: &[LossType]) -> Result<LossType, Invalid> {
        let Some(found) = self.loss_type.as_deref() else {
            return Ok(known[0]);
        };
        match found {
            [one] if known.contains(one) => Ok(*one),
            _ => Err(self.unknown_loss(known, "one of")),
        }
    }

    fn dpo_losses(&self) -> Result<Vec<(LossType, f64)>, Invalid> {
        const KNOWN: [LossType; 7] = [
            LossType::Sigmoid,
            LossType::Robust,
            LossType::Hinge,
            LossType::Ipo,
            LossType::ApoZero,
            LossType::ApoDown,
            LossType::Sft,
        ];
        let types = self.loss_type.as_deref().unwrap_or(&KNOWN[..1]);
        let is_known = |one: &LossType| KNOWN.contains(one);
        if types.is_empty() || !types.iter().all(is_known) {
            return Err(self.unknown_loss(&KNOWN, "one or more of"));
        }
        let weights = match &self.loss_weights {
            Some(weights) => weights.clone(),
            None => vec![1.0; types.len()],
        };
        if weights.len() != types.len() {
            let (weights, types) = (weights.len(), types.len());
            let problem = format!("has {weights} weights for {types} in `loss_type`");
            return Err(("loss_weights", problem));
        }
        for &weight in &weights {
            not_negative("loss_weights", weight)?;
        }
        if weights.iter().sum::<f64>() == 0.0 {
            let problem = "must not all be 0: nothing would be learned";
            return Err(("loss_weights", problem.to_owned()));
        }
        Ok(types.iter().copied().zip(weights).collect())
    }

    fn unknown_loss(&self, known: &[LossType], how_many: &str) -> Invalid {
        let name = self.r#type.name();
        let known: Vec<_> = known.iter().map(|one| one.name()).collect();
        let found = self.loss_type.iter().flatten().map(|one| one.name());
        let found: Vec<_> = found.collect();
        let problem = format!(
            "of `{name}` must be {how_many} {}, got [{}]",
            known.join(", "),
            found.join(", ")
        );
        ("loss_type", problem)
    }
}

impl AdapterConfig {
    /// Probability with which an element of the adapter's input is dropped, unless the objective trains without
    /// dropout.
    pub fn dropout(&self) -> f64 {
        if self.objective.disables_dropout() {
            return 0.0;
        }
        self.lora.lora_dropout
    }
}

impl ObjectiveType {
    /// The name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sft => "sft",
            Self::Dpo => "dpo",
            Self::Kto => "kto",
            Self::Orpo => "orpo",
            Self::Cpo => "cpo",
            Self::Simpo => "simpo",
            Self::Cit => "cit",
        }
    }
}

fn positive(key: &'static str, value: f64) -> Result<(), Invalid> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err((key, format!("must be finite and above 0, got {value}")))
}

fn not_negative(key: &'static str, value: f64) -> Result<(), Invalid> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err((key, format!("must be finite and at least 0, got {value}")))
}
