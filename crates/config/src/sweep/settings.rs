use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Adapters that are compared with each other. All see the same rows in the same order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepConfig {
    /// Unique name.
    pub name: String,
    /// Its adapters by name, never none; each is in no other sweep.
    pub adapters: Vec<String>,
    /// How adapters that fall behind are stopped; `None` trains all of them to the end.
    pub early_stopping: Option<EarlyStopping>,
}

/// Asynchronous successive halving, in the words of Ray Tune's `ASHAScheduler`.
///
/// At step `grace_period · reduction_factor^k`, for each k, adapters outside the best one in
/// `reduction_factor` of those that got so far are stopped. Those that get there in the same iteration
/// are compared together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EarlyStopping {
    /// What is compared; lower is better.
    pub metric: StoppingMetric,
    /// Optimizer steps that every adapter takes; at least 1.
    pub grace_period: usize,
    /// One in so many goes on, so many times as far; at least 2.
    pub reduction_factor: usize,
    /// An adapter is stopped when its training loss is above so many times its own first one, or not
    /// finite; above 1. `None` does not watch it.
    pub divergence: Option<f64>,
}

impl EarlyStopping {
    /// [`reduction_factor`](Self::reduction_factor) unless a file says otherwise.
    pub const REDUCTION_FACTOR: usize = 3;
}

/// What the adapters of a sweep are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoppingMetric {
    /// The loss on the validation rows, known every `eval.steps` steps.
    EvalLoss,
    /// The loss on the rows of a step.
    TrainLoss,
}

impl StoppingMetric {
    /// As configurations and events have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EvalLoss => "eval_loss",
            Self::TrainLoss => "train_loss",
        }
    }
}
