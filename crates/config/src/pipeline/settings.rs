use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BalanceChoice, StageChoice};

/// How the model is spread over devices and workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PipelineConfig {
    /// Device or worker of each stage, in the order of the layers; never empty.
    pub stages: Vec<StageChoice>,
    /// Decoder layers of each stage.
    pub balance: BalanceChoice,
    /// Order in which stages process the groups of adapters.
    pub schedule: ScheduleChoice,
    /// Micro-batches that each batch of a group is cut into; at least 1.
    pub microbatches: usize,
    /// Extra micro-batches that each stage keeps in flight to hide the latency of slow links; at most
    /// [`MOST_WARMUP`](Self::MOST_WARMUP). A stage followed by k others keeps the activations of
    /// `k · extra_warmup` more micro-batches.
    pub extra_warmup: usize,
    /// File with the token that the workers were started with; set if any stage is remote.
    pub token_file: Option<PathBuf>,
    /// Seconds without progress after which the run gives up on a worker; above 0.
    pub step_deadline: f64,
}

impl PipelineConfig {
    /// Default of [`step_deadline`](Self::step_deadline), in seconds.
    pub const STEP_DEADLINE: f64 = 600.0;

    /// The largest [`extra_warmup`](Self::extra_warmup).
    pub const MOST_WARMUP: usize = 16;

    /// Groups of adapters that keep all stages busy: one per stage, and one for each micro-batch in
    /// flight between two stages.
    pub fn groups(&self) -> usize {
        let stages = self.stages.len();
        stages + stages.saturating_sub(1) * self.extra_warmup
    }

    /// True if any stage is on another machine.
    pub fn has_workers(&self) -> bool {
        let is_worker = |stage: &StageChoice| matches!(stage, StageChoice::Remote(_));
        self.stages.iter().any(is_worker)
    }
}

/// Order in which stages process the groups of adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScheduleChoice {
    /// Interleaves the passes of all groups; no stage idles if there are as many groups as stages.
    #[serde(rename = "lorapp")]
    Lorapp,
    /// One group after another, each by 1F1B. A baseline.
    #[serde(rename = "one_f_one_b")]
    OneFOneB,
    /// One group after another, each with all forward passes before its backward passes. A baseline.
    #[serde(rename = "gpipe")]
    Gpipe,
}
