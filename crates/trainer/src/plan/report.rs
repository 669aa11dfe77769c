use std::collections::BTreeMap;

use loraloom_config::Schedule;
use loraloom_pipeline::simulate::{Timeline, gantt_svg};
use serde::Serialize;

/// What a run will hold and how it will go. Fields that begin with `estimated` and everything that
/// is simulated are estimates.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Type of frozen weights and activations that sizes are for.
    pub dtype: String,
    /// In which order stages work for the groups.
    pub schedule: Schedule,
    /// By stage.
    pub stages: Vec<PlannedStage>,
    /// Where groups have their layers on different stages: how many each stage runs, by partition.
    /// Groups take the partitions in turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<Vec<Vec<usize>>>,
    /// Tasks that train together, by group.
    pub groups: Vec<PlannedGroup>,
    /// Adapters that wait for a place.
    pub waiting: Vec<String>,
    /// Why each of them waits, by name.
    pub waiting_reasons: BTreeMap<String, String>,
    /// Those of them that do not fit even alone: a run would be refused for them.
    pub refused: Vec<String>,
    /// Of those that train at first, the ones that may not fit even alone, and why, by name.
    pub may_not_fit: BTreeMap<String, String>,
    /// By pair of neighbouring stages.
    pub links: Vec<PlannedLink>,
    /// How much of the stages' time is idle.
    pub bubble: PlannedBubble,
    /// Seconds from one iteration to the next, once the pipeline is full; `None` if nothing is known
    /// of the stages' speed.
    pub estimated_seconds_per_iteration: Option<f64>,
    /// The first iterations as text, a line a stage; see
    /// [`gantt_text`](loraloom_pipeline::simulate::gantt_text).
    pub gantt: String,
    /// What was assumed and what is left out, a sentence each.
    pub notes: Vec<String>,
    /// What the run would warn of, a sentence each.
    pub warnings: Vec<String>,
    #[serde(skip)]
    pub(super) chart: Timeline,
}

/// One stage: its layers and what they take.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedStage {
    /// The device or worker, as the configuration names it.
    pub on: String,
    /// Its first decoder layer.
    pub first_layer: usize,
    /// How many decoder layers it holds, for whatever group.
    pub layers: usize,
    /// It embeds tokens.
    pub embedding: bool,
    /// It has the output projection and computes the losses.
    pub head: bool,
    /// Bytes of frozen weights.
    pub weight_bytes: usize,
    /// Bytes of all adapters that train at first, and of their moments.
    pub adapter_bytes: usize,
    /// Bytes of these adapters' gradients, once all groups are on their way.
    pub gradient_bytes: usize,
    /// Bytes that a micro-batch keeps from its forward to its backward pass: the largest of any
    /// group, were its tasks' longest samples to meet.
    pub estimated_activation_bytes_per_microbatch: usize,
    /// Micro-batches between their forward and their backward pass, at most.
    pub microbatches_in_flight: usize,
    /// Bytes of all activations at their largest, with the layer that gradient checkpointing computes
    /// again.
    pub estimated_activation_bytes: usize,
    /// All of these together.
    pub estimated_bytes: usize,
    /// Its part of all operations.
    pub estimated_share: f64,
    /// Idle part of its time, once the pipeline is full.
    pub simulated_bubble: f64,
}

/// Tasks that share their batches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedGroup {
    /// Names of their adapters.
    pub adapters: Vec<String>,
    /// Micro-batches of a step.
    pub microbatches: usize,
    /// Tokens of a step, by the data's average.
    pub estimated_tokens_per_step: f64,
    /// Tokens of a micro-batch if each task's longest samples meet in it.
    pub most_tokens_per_microbatch: usize,
}

/// The way between two neighbouring stages.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedLink {
    /// The stage below.
    pub from: usize,
    /// The stage above.
    pub to: usize,
    /// Bytes of a micro-batch in one direction, by group: hidden states up, their gradient down.
    pub estimated_bytes_per_microbatch: Vec<f64>,
    /// Bytes of an iteration in both directions.
    pub estimated_bytes_per_iteration: f64,
}

/// The idle part of the stages' time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PlannedBubble {
    /// By the schedule's formula, where all stages and groups take the same time and hops none.
    pub closed_form: f64,
    /// With the estimated costs, once the pipeline is full.
    pub simulated: f64,
    /// The same where every iteration waits for the one before to end.
    pub simulated_if_drained: f64,
}

impl Plan {
    /// The first iterations as an SVG image; see
    /// [`gantt_svg`](loraloom_pipeline::simulate::gantt_svg).
    pub fn gantt_svg(&self) -> String {
        gantt_svg(&self.chart)
    }
}
