use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Adapters that are compared with each other. All train on the same rows in the same order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepConfig {
    /// Unique name.
    pub name: String,
    /// Names of its adapters, at least one. An adapter is in one sweep at most.
    pub adapters: Vec<String>,
    /// Rule that stops adapters; `None` trains all of them to the end.
    pub early_stopping: Option<EarlyStopping>,
}

/// Asynchronous successive halving; the names are those of Ray Tune's `ASHAScheduler`.
///
/// At the steps `grace_period · reduction_factor^k`, k = 0, 1, 2, …, the best `1 / reduction_factor` of
/// the adapters that have reached the step continue and the others stop. Adapters that reach it in the
/// same iteration are compared together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EarlyStopping {
    /// Value that is compared.
    pub metric: StoppingMetric,
    /// Optimizer steps of every adapter before the first comparison; at least 1.
    pub grace_period: usize,
    /// Ratio between the steps of two comparisons, and inverse of the share that continues; at least 2.
    pub reduction_factor: usize,
    /// Also stops an adapter at the step whose training loss exceeds this multiple of its first one; above 1.
    /// `None` turns this off.
    pub divergence: Option<f64>,
}

impl EarlyStopping {
    /// Default of [`reduction_factor`](Self::reduction_factor).
    pub const REDUCTION_FACTOR: usize = 3;
}

/// Value that the adapters of a sweep are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoppingMetric {
    /// Loss on the validation rows, computed at every comparison.
    EvalLoss,
    /// Loss on the rows of a training step.
    TrainLoss,
    /// Mean reward of chosen less that of rejected completions of the validation rows; higher is better.
    #[serde(rename = "eval_rewards/margins")]
    EvalMargins,
    /// Share of the validation pairs whose chosen completion has the larger reward; higher is better.
    #[serde(rename = "eval_rewards/accuracies")]
    EvalAccuracies,
}

impl StoppingMetric {
    /// The name in configurations and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EvalLoss => "eval_loss",
            Self::TrainLoss => "train_loss",
            Self::EvalMargins => "eval_rewards/margins",
            Self::EvalAccuracies => "eval_rewards/accuracies",
        }
    }

    /// True if it is of the validation rows.
    pub fn is_evaluated(self) -> bool {
        self != Self::TrainLoss
    }

    /// A number that is lower for better values.
    pub fn cost(self, value: f64) -> f64 {
        match self {
            Self::EvalLoss | Self::TrainLoss => value,
            Self::EvalMargins | Self::EvalAccuracies => -value,
        }
    }
}
