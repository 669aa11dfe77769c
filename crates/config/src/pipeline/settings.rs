use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BalanceChoice, StageLocation};

/// Settings of the pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PipelineConfig {
    /// Location of each stage, in the order of the layers; never empty.
    pub stages: Vec<StageLocation>,
    /// How many decoder layers each stage holds.
    pub balance: BalanceChoice,
    /// In which order the stages work for the groups of adapters.
    pub schedule: Schedule,
    /// Parts that every batch of a group is cut into, so that several stages work on it at a time;
    /// at least 1.
    pub microbatches: usize,
    /// Micro-batches, beyond one, that every stage runs ahead of the next, so that it has work during
    /// transfers; at most [`MOST_WARMUP`](Self::MOST_WARMUP). A stage followed by k others keeps the
    /// activations of `k · extra_warmup` more micro-batches.
    pub extra_warmup: usize,
    /// File with the token that workers were started with; set if any stage is a worker.
    pub token_file: Option<PathBuf>,
    /// Seconds without progress after which a worker counts as lost; above 0.
    pub step_deadline: f64,
}

impl PipelineConfig {
    /// The default of [`step_deadline`](Self::step_deadline), in seconds.
    pub const STEP_DEADLINE: f64 = 600.0;

    /// The largest [`extra_warmup`](Self::extra_warmup).
    pub const MOST_WARMUP: usize = 16;

    /// Number of adapter groups that keeps all stages busy: one for each stage, and one for each
    /// micro-batch in transfer between two stages.
    pub fn groups(&self) -> usize {
        let stages = self.stages.len();
        stages + stages.saturating_sub(1) * self.extra_warmup
    }

    /// True if any stage is on another machine.
    pub fn has_workers(&self) -> bool {
        let is_worker = |stage: &StageLocation| matches!(stage, StageLocation::Remote(_));
        self.stages.iter().any(is_worker)
    }
}

/// Order in which stages process the groups of adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
pub enum Schedule {
    /// Interleaves the passes of all groups; no stage idles if there are as many groups as stages.
    #[default]
    #[serde(rename = "lorapp")]
    LoraPp,
    /// One group after another, each by 1F1B. A baseline.
    #[serde(rename = "one_f_one_b")]
    OneFOneB,
    /// One group after another, each with all forward passes before its backward passes. A baseline.
    #[serde(rename = "gpipe")]
    GPipe,
}
