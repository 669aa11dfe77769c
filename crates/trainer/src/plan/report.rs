use std::collections::BTreeMap;

use loraloom_config::Schedule;
use loraloom_pipeline::simulate::{Timeline, gantt_svg};
use serde::Serialize;

/// The forecast of a run. Fields that begin with `estimated`, and all simulated ones, are estimates.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Type of frozen weights and activations that sizes are for.
    pub dtype: String,
    /// Order of a stage's work.
    pub schedule: Schedule,
    /// By stage.
    pub stages: Vec<PlannedStage>,
    /// If groups have their layers on different stages, the number that each stage runs, by partition. Groups take
    /// the partitions in turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<Vec<Vec<usize>>>,
    /// Tasks that train together, by group.
    pub groups: Vec<PlannedGroup>,
    /// Adapters that wait for a place.
    pub waiting: Vec<String>,
    /// The reasons, by name.
    pub waiting_reasons: BTreeMap<String, String>,
    /// Waiting adapters that do not fit even alone: a run stops with an error.
    pub refused: Vec<String>,
    /// Adapters that train at first although they may not fit even alone, with the reasons, by name.
    pub may_not_fit: BTreeMap<String, String>,
    /// By pair of neighbouring stages.
    pub links: Vec<PlannedLink>,
    /// Idle share of the stages' time.
    pub bubble: PlannedBubble,
    /// Seconds from one iteration to the next, once the pipeline is full; `None` if the stages' speed is unknown.
    pub estimated_seconds_per_iteration: Option<f64>,
    /// The first iterations as text, a line a stage; see
    /// [`gantt_text`](loraloom_pipeline::simulate::gantt_text).
    pub gantt: String,
    /// Assumptions and omissions, a sentence each.
    pub notes: Vec<String>,
    /// Warnings that the run would give.
    pub warnings: Vec<String>,
    #[serde(skip)]
    pub(super) chart: Timeline,
}

/// A stage's layers and memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedStage {
    /// The device or worker, as the configuration names it.
    pub on: String,
    /// Its first decoder layer.
    pub first_layer: usize,
    /// Number of decoder layers that it holds, for any group.
    pub layers: usize,
    /// It embeds tokens.
    pub embedding: bool,
    /// It has the output projection and computes the losses.
    pub head: bool,
    /// Bytes of the frozen weights.
    pub weight_bytes: usize,
    /// Bytes of all adapters that train at first, with their moments.
    pub adapter_bytes: usize,
    /// Bytes of these adapters' gradients, once all groups have passes under way.
    pub gradient_bytes: usize,
    /// Bytes of a copy of these adapters, to which a run on the CPU returns if memory runs out. A GPU's copy is in host
    /// memory, but its memory pools held about as many more bytes when measured.
    pub estimated_copy_bytes: usize,
    /// Bytes that a micro-batch keeps from its forward to its backward pass: the largest of any group, if its tasks'
    /// longest samples meet.
    pub estimated_activation_bytes_per_microbatch: usize,
    /// Micro-batches between their forward and their backward pass, at most.
    pub microbatches_in_flight: usize,
    /// Peak bytes of all activations, with the layer that gradient checkpointing recomputes.
    pub estimated_activation_bytes: usize,
    /// Bytes of the larger buffers: those of the loss, or of a layer's backward pass.
    pub estimated_buffer_bytes: usize,
    /// Peak bytes. Not all of these are in memory at a time: the loss has no gradients of a step of one micro-batch, and
    /// the end of a backward pass has few activations.
    pub estimated_bytes: usize,
    /// Its share of all operations.
    pub estimated_share: f64,
    /// Idle share of its time, once the pipeline is full.
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

/// The link between two neighbouring stages.
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

/// Idle share of the stages' time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PlannedBubble {
    /// By the schedule's formula, if all stages and groups take the same time and transfers none.
    pub closed_form: f64,
    /// With the estimated costs, once the pipeline is full.
    pub simulated: f64,
    /// The same, if every iteration waits for the one before to end.
    pub simulated_if_drained: f64,
}

impl Plan {
    /// The first iterations as an SVG image; see
    /// [`gantt_svg`](loraloom_pipeline::simulate::gantt_svg).
    pub fn gantt_svg(&self) -> String {
        gantt_svg(&self.chart)
    }
}
