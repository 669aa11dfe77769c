use batchlora::{Segment, SlotUpdate};
use burn::tensor::FloatDType;
use loraloom_model::Quantization;
use serde::{Deserialize, Serialize};

use super::{Specs, WireMicrobatch};
use crate::{MicrobatchId, Tag, remote::WorkerError};

/// A command to a worker. Its tensors are inputs and outputs of the operation that carries it.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::remote) enum Command {
    /// Output: one element.
    Ping,
    /// Claims the worker, if it is free and compatible. Answered.
    Hello(Greeting),
    /// Asks for the first failure. Answered.
    Health,
    /// Reads layers. Answered.
    Load(LoadRequest),
    /// See [`PipelineStage::reserve_groups`](crate::PipelineStage::reserve_groups). Answered.
    ReserveGroups { count: usize },
    /// See [`PipelineStage::swap_groups`](crate::PipelineStage::swap_groups). Answered.
    SwapGroups { first: usize, second: usize },
    /// Inputs: the tensors of every part. Answered.
    Push { group: usize, adapter: Specs },
    /// Answered. Outputs: the tensors of every part.
    Remove { group: usize, slot: usize },
    /// Answered. Outputs: the tensors of every part.
    Extract { group: usize, slot: usize },
    /// Takes hidden states, except at the first stage. Output: hidden states, or losses. `delivered`,
    /// here and below: the tensor was sent by [`Deliver`](Self::Deliver), and is no input.
    Forward {
        at: MicrobatchId,
        delivered: bool,
        microbatch: WireMicrobatch,
    },
    /// Takes a gradient, except at the last stage. Output: gradient, except at the first.
    Backward { at: MicrobatchId, delivered: bool },
    /// Takes squares, except at the last stage. Output: squares.
    AddSquares { group: usize, delivered: bool },
    /// Takes squares. Output: squared norms.
    Update {
        group: usize,
        delivered: bool,
        updates: Vec<Option<SlotUpdate>>,
    },
    /// Input: a tensor, kept until a command takes it. No output.
    Deliver { tag: Tag },
    /// Output: the times of a group's step of `microbatches` micro-batches; see
    /// [`StageTimes`](crate::StageTimes).
    Times { group: usize, microbatches: usize },
    /// Input: hidden states, except at the first stage. Output: hidden states.
    Infer {
        group: usize,
        microbatch: WireMicrobatch,
        cache: Option<WireCache>,
    },
    /// Input: hidden states. Output: losses, and which targets are the likeliest tokens.
    TargetScores {
        group: usize,
        microbatch: WireMicrobatch,
    },
    /// Input: hidden states. Output: logits. The segments assign those rows to the group's slots.
    Logits {
        group: usize,
        segments: Vec<Segment>,
    },
    /// No output.
    DropCache { cache: u64 },
    /// Asks for the worker's time and memory. Answered.
    Pulse,
}

/// A cache on a worker, which its first use makes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(in crate::remote) struct WireCache {
    pub(in crate::remote) number: u64,
    pub(in crate::remote) blocks: usize,
}

impl Command {
    /// True if the first output is an [`Answer`].
    pub(in crate::remote) fn is_answered(&self) -> bool {
        matches!(
            self,
            Self::Hello(_)
                | Self::Health
                | Self::Load(_)
                | Self::ReserveGroups { .. }
                | Self::SwapGroups { .. }
                | Self::Push { .. }
                | Self::Remove { .. }
                | Self::Extract { .. }
                | Self::Pulse
        )
    }

    /// The tag of the delivered tensor that it takes.
    pub(in crate::remote) fn takes(&self) -> Option<Tag> {
        let (delivered, tag) = match *self {
            Self::Forward { at, delivered, .. } => (delivered, Tag::Hidden(at)),
            Self::Backward { at, delivered } => (delivered, Tag::Gradient(at)),
            Self::AddSquares { group, delivered } => (delivered, Tag::SquaresAbove(group)),
            Self::Update {
                group, delivered, ..
            } => (delivered, Tag::Squares(group)),
            _ => return None,
        };
        delivered.then_some(tag)
    }

    /// True if it concerns no stage, and so must not wait for one.
    pub(in crate::remote) fn is_talk(&self) -> bool {
        matches!(
            self,
            Self::Ping | Self::Hello(_) | Self::Health | Self::Pulse
        )
    }
}

/// A controller's claim to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::remote) struct Greeting {
    pub(in crate::remote) protocol: u32,
    pub(in crate::remote) version: String,
    /// Key of the controller.
    pub(in crate::remote) controller: [u8; 32],
    /// The model's configuration, a field per line.
    pub(in crate::remote) config: String,
}

/// The contents of a stage.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::remote) struct LoadRequest {
    /// First layer and one past the last of each range that groups take in turn; see
    /// [`StageLayers`](crate::StageLayers).
    pub(in crate::remote) layers: Vec<[usize; 2]>,
    pub(in crate::remote) dtype: FloatDType,
    /// The worker quantises linear layers so as it reads them.
    pub(in crate::remote) quantization: Option<Quantization>,
    pub(in crate::remote) gradient_checkpointing: bool,
    /// Digest of the weights; see [`weights_digest`](crate::remote::connection::weights_digest).
    pub(in crate::remote) digest: [u8; 32],
}

/// A worker's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::remote) enum Answer {
    Done,
    /// The worker accepts the controller.
    Yours {
        lease: u64,
        /// True if it computes on its CPU, within the call of a pass.
        on_cpu: bool,
        /// Types that the device can compute in.
        dtypes: Vec<FloatDType>,
    },
    Slot(usize),
    Loaded {
        /// Bytes of the weights in memory.
        weight_bytes: u64,
        /// Name of the code that multiplies matrices.
        products: String,
    },
    Pulse {
        /// Seconds of the worker's clock.
        time: f64,
        /// If the device reports them.
        reserved_bytes: Option<u64>,
    },
    /// The first failure.
    Health(Option<StageFailure>),
    Refused(WorkerError),
}

impl Answer {
    /// Cuts its texts to at most `limit` bytes together.
    pub(in crate::remote) fn shorten(&mut self, limit: usize) {
        let cut = |text: &mut String, limit| text.truncate(text.floor_char_boundary(limit));
        match self {
            Self::Health(Some(StageFailure { reason, .. }))
            | Self::Refused(WorkerError::Failed { reason }) => cut(reason, limit),
            Self::Refused(WorkerError::Mismatch {
                what,
                worker,
                controller,
            }) => {
                for text in [what, worker, controller] {
                    cut(text, limit / 3);
                }
            }
            _ => {}
        }
    }
}

/// The reason of a worker's failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::remote) struct StageFailure {
    pub(in crate::remote) reason: String,
    /// True if the cause is a tensor that another stage did not send.
    pub(in crate::remote) inherited: bool,
}
