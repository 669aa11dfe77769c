//! The objective of an adapter: its loss, with TRL's keys and defaults.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    AdapterConfig, ConfigError, Contrast, Cpo, Dpo, Kto, LossType, Orpo, PreferenceLoss,
    StoppingMetric, alternatives::OneOrMany, place::Source, preference_loss::loss_types,
    tree::Node,
};

/// Loss of an adapter. The keys and their defaults are TRL's; a key that the type does not have is refused. An adapter
/// with another type than `defaults` takes the keys of `defaults` that its type also has, but not `loss_type`.
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

/// The keys of the objective with this name; none if there is no such objective.
pub(crate) fn keys_of(name: &str) -> &'static [&'static str] {
    let found = ObjectiveType::ALL.iter().find(|one| one.name() == name);
    found.map_or(&[], |objective| objective.keys())
}

/// Refuses names in `loss_type` that no objective has, given the settings of an adapter below `parent`.
///
/// # Errors
/// [`ConfigError::Invalid`] with the variants of the adapter's objective.
pub(crate) fn check_loss_types(
    settings: &Node,
    source: &Source<'_>,
    parent: &str,
) -> Result<(), ConfigError> {
    let text = settings.find("objective.type").and_then(Node::text);
    let mut types = ObjectiveType::ALL.iter();
    let objective = types.find(|objective| Some(objective.name()) == text);
    let Some((objective, written)) = objective.zip(settings.find("objective.loss_type")) else {
        return Ok(());
    };
    let written_names = std::iter::once(written).chain(written.items());
    let names: Vec<&str> = written_names.filter_map(Node::text).collect();
    if names.iter().all(|name| LossType::named(name).is_some()) {
        return Ok(());
    }
    let problem = match objective.loss_types() {
        [] => objective.has_not(),
        _ => objective.unknown_losses(&names),
    };
    Err(source.invalid(
        written.location,
        format!("{parent}.objective.loss_type"),
        problem,
    ))
}

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
        self.filled().disable_dropout == Some(true)
    }

    /// The loss over paraphrases that is added to the cross-entropy.
    pub fn contrast(&self) -> Option<Contrast> {
        let filled = self.filled();
        (self.r#type == ObjectiveType::Cit).then(|| Contrast {
            lambda: filled.lambda.unwrap_or_default(),
            temperature: filled.temperature.unwrap_or_default(),
        })
    }

    /// Writes out the defaults of the keys that the objective has.
    pub(crate) fn fill_defaults(&mut self) {
        let keys = self.r#type.keys();
        let fill = |key, value: &mut Option<f64>, default| {
            if keys.contains(&key) {
                value.get_or_insert(default);
            }
        };
        let alpha = if self.r#type == ObjectiveType::Simpo {
            0.0
        } else {
            1.0
        };
        fill("beta", &mut self.beta, 0.1);
        fill("label_smoothing", &mut self.label_smoothing, 0.0);
        fill("desirable_weight", &mut self.desirable_weight, 1.0);
        fill("undesirable_weight", &mut self.undesirable_weight, 1.0);
        fill("cpo_alpha", &mut self.cpo_alpha, alpha);
        fill("simpo_gamma", &mut self.simpo_gamma, 0.5);
        fill("lambda", &mut self.lambda, 1.0);
        fill("temperature", &mut self.temperature, 2.0);
        if keys.contains(&"reference") {
            self.reference.get_or_insert_default();
            self.precompute_ref_log_probs.get_or_insert_default();
        }
        if keys.contains(&"disable_dropout") {
            self.disable_dropout.get_or_insert(true);
        }
        if let [first, ..] = self.r#type.loss_types() {
            let types = self.loss_type.get_or_insert_with(|| vec![*first]).len();
            if keys.contains(&"loss_weights") {
                self.loss_weights.get_or_insert_with(|| vec![1.0; types]);
            }
        }
    }

    /// The same with the defaults of the keys that the objective has.
    fn filled(&self) -> Self {
        let mut filled = self.clone();
        filled.fill_defaults();
        filled
    }

    /// The loss over completions; `None` is the cross-entropy of all targets, with [`contrast`](Self::contrast) if it
    /// has one.
    ///
    /// # Errors
    /// The first key with a value out of its range, or that the objective does not have.
    pub fn loss(&self) -> Result<Option<PreferenceLoss>, Invalid> {
        self.check_keys()?;
        let filled = self.filled();
        for (key, value) in [
            ("beta", filled.beta),
            ("lambda", filled.lambda),
            ("temperature", filled.temperature),
        ] {
            positive(key, value.unwrap_or(1.0))?;
        }
        for (key, value) in [
            ("cpo_alpha", filled.cpo_alpha),
            ("simpo_gamma", filled.simpo_gamma),
            ("desirable_weight", filled.desirable_weight),
            ("undesirable_weight", filled.undesirable_weight),
        ] {
            not_negative(key, value.unwrap_or_default())?;
        }
        filled.check_smoothing()?;
        if [filled.desirable_weight, filled.undesirable_weight] == [Some(0.0); 2] {
            let problem = "and desirable_weight are 0: nothing would be learned";
            return Err(("undesirable_weight", problem.to_owned()));
        }
        let beta = filled.beta.unwrap_or_default();
        let label_smoothing = filled.label_smoothing.unwrap_or_default();
        Ok(Some(match self.r#type {
            ObjectiveType::Sft | ObjectiveType::Cit => return Ok(None),
            ObjectiveType::Dpo => PreferenceLoss::Dpo(Dpo {
                losses: filled.dpo_losses()?,
                beta,
                label_smoothing,
            }),
            ObjectiveType::Kto => PreferenceLoss::Kto(Kto {
                loss: filled.variant()?,
                beta,
                desirable_weight: filled.desirable_weight.unwrap_or_default(),
                undesirable_weight: filled.undesirable_weight.unwrap_or_default(),
            }),
            ObjectiveType::Orpo => PreferenceLoss::Orpo(Orpo { beta }),
            ObjectiveType::Cpo | ObjectiveType::Simpo => PreferenceLoss::Cpo(Cpo {
                loss: (self.r#type == ObjectiveType::Cpo)
                    .then(|| filled.variant())
                    .transpose()?,
                beta,
                label_smoothing,
                cpo_alpha: filled.cpo_alpha.unwrap_or_default(),
                simpo_gamma: filled.simpo_gamma.unwrap_or_default(),
            }),
        }))
    }

    /// Refuses a `label_smoothing` out of range, or where the losses do not have it.
    fn check_smoothing(&self) -> Result<(), Invalid> {
        let label_smoothing = self.label_smoothing.unwrap_or_default();
        if !(0.0..0.5).contains(&label_smoothing) {
            let problem = format!("must be at least 0 and below 0.5, got {label_smoothing}");
            return Err(("label_smoothing", problem));
        }
        let types = self.loss_type.as_deref().unwrap_or_default();
        let smooths = match self.r#type {
            ObjectiveType::Dpo => types.contains(&LossType::Robust),
            ObjectiveType::Cpo => !matches!(types, [LossType::Hinge | LossType::Ipo]),
            _ => true,
        };
        if label_smoothing > 0.0 && !smooths {
            let problem = match self.r#type {
                ObjectiveType::Dpo => {
                    "has no effect, as in TRL, but on `loss_type: robust`, which corrects for it: set that, or remove \
                     it; cDPO is not there"
                }
                _ => "has no effect on this `loss_type`; remove it",
            };
            return Err(("label_smoothing", problem.to_owned()));
        }
        Ok(())
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
        for (key, is_set) in set {
            if is_set && !self.r#type.keys().contains(&key) {
                return Err((key, self.r#type.has_not()));
            }
        }
        Ok(())
    }

    /// The only `loss_type`.
    fn variant(&self) -> Result<LossType, Invalid> {
        match self.loss_type.as_deref() {
            Some([one]) if self.r#type.loss_types().contains(one) => Ok(*one),
            _ => Err(self.unknown_loss()),
        }
    }

    fn dpo_losses(&self) -> Result<Vec<(LossType, f64)>, Invalid> {
        let types = self.loss_type.as_deref().unwrap_or_default();
        let is_known = |one: &LossType| self.r#type.loss_types().contains(one);
        if types.is_empty() || !types.iter().all(is_known) {
            return Err(self.unknown_loss());
        }
        let weights = self.loss_weights.as_deref().unwrap_or_default();
        if weights.len() != types.len() {
            let (weights, types) = (weights.len(), types.len());
            let problem = format!("has {weights} weights for {types} in `loss_type`");
            return Err(("loss_weights", problem));
        }
        for &weight in weights {
            not_negative("loss_weights", weight)?;
        }
        if weights.iter().sum::<f64>() == 0.0 {
            let problem = "must not all be 0: nothing would be learned";
            return Err(("loss_weights", problem.to_owned()));
        }
        Ok(types.iter().copied().zip(weights.iter().copied()).collect())
    }

    fn unknown_loss(&self) -> Invalid {
        let found = self.loss_type.iter().flatten().map(|one| one.name());
        let problem = self.r#type.unknown_losses(&found.collect::<Vec<_>>());
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
    const ALL: [Self; 7] = [
        Self::Sft,
        Self::Dpo,
        Self::Kto,
        Self::Orpo,
        Self::Cpo,
        Self::Simpo,
        Self::Cit,
    ];

    /// The keys that it has beside `type`.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Sft => &[],
            Self::Dpo => &[
                "loss_type",
                "loss_weights",
                "beta",
                "label_smoothing",
                "reference",
                "precompute_ref_log_probs",
                "disable_dropout",
            ],
            Self::Kto => &[
                "loss_type",
                "beta",
                "reference",
                "precompute_ref_log_probs",
                "disable_dropout",
                "desirable_weight",
                "undesirable_weight",
            ],
            Self::Orpo => &["beta", "disable_dropout"],
            Self::Cpo => &[
                "loss_type",
                "beta",
                "label_smoothing",
                "disable_dropout",
                "cpo_alpha",
            ],
            Self::Simpo => &[
                "beta",
                "label_smoothing",
                "disable_dropout",
                "cpo_alpha",
                "simpo_gamma",
            ],
            Self::Cit => &["lambda", "temperature"],
        }
    }

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

    /// Says that a key is none of its own.
    fn has_not(self) -> String {
        let (name, keys) = (self.name(), self.keys());
        if keys.is_empty() {
            return format!("`{name}` has no such key: remove it, or set `type`");
        }
        format!("`{name}` has no such key; it has {}", keys.join(", "))
    }

    /// Says that these are not all variants of it.
    fn unknown_losses(self, found: &[&str]) -> String {
        let how_many = if self == Self::Dpo {
            "one or more of"
        } else {
            "one of"
        };
        let mut others = ObjectiveType::ALL.iter().map(|objective| objective.name());
        let other = others.find(|other| *other != self.name() && found.contains(other));
        let other = other.map_or_else(String::new, |other| {
            format!("; write `type: {other}` for that objective")
        });
        let known = self.loss_types().iter().map(|one| one.name());
        format!(
            "of `{}` must be {how_many} {}, got [{}]{other}",
            self.name(),
            known.collect::<Vec<_>>().join(", "),
            found.join(", ")
        )
    }

    /// Its variants, the default first.
    pub(crate) fn loss_types(self) -> &'static [LossType] {
        match self {
            Self::Dpo => &[
                LossType::Sigmoid,
                LossType::Robust,
                LossType::Hinge,
                LossType::Ipo,
                LossType::ApoZero,
                LossType::ApoDown,
                LossType::Sft,
            ],
            Self::Kto => &[LossType::Kto, LossType::ApoZeroUnpaired],
            Self::Cpo => &[LossType::Sigmoid, LossType::Hinge, LossType::Ipo],
            _ => &[],
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
