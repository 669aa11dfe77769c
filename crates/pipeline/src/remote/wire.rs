//! What controller and worker say to each other.

use batchlora::{LoraSpec, SlotUpdate};
use burn::tensor::FloatDType;
use serde::{Deserialize, Serialize};

use super::{
    error::WorkerError,
    wire_microbatch::{WireMicrobatch, WireTargets},
};
use crate::{MicrobatchId, Tag};

/// What a worker is to do. Tensors that belong to it are inputs of the operation, what comes of it
/// is its outputs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// Is anybody there? Output: one element.
    Ping,
    /// Takes the worker, if it is free and of the same kind. Answered.
    Hello(Greeting),
    /// What went wrong first, if anything did. Answered.
    Health,
    /// Reads layers. Answered.
    Load(LoadOrder),
    /// See [`Stage::reserve_groups`](crate::Stage::reserve_groups). Answered.
    ReserveGroups { count: usize },
    /// See [`Stage::swap_groups`](crate::Stage::swap_groups). Answered.
    SwapGroups { first: usize, second: usize },
    /// Inputs: the tensors of every part. Answered.
    Push {
        group: usize,
        adapter: Vec<[Option<WireSpec>; 7]>,
    },
    /// Answered. Outputs: the tensors of every part.
    Remove { group: usize, slot: usize },
    /// Answered. Outputs: the tensors of every part.
    Extract { group: usize, slot: usize },
    /// Takes hidden states, except at the first stage. Output: hidden states, or losses.
    Forward {
        at: MicrobatchId,
        delivered: bool,
        microbatch: WireMicrobatch,
    },
    /// Takes a gradient, except at the last stage. Output: gradient, except at the first.
    Backward { at: MicrobatchId, delivered: bool },
    /// Takes squares, except at the last stage. Output: squares.
    AddSquares { group: usize, delivered: bool },
    /// Takes squares, as its input or as they were delivered. Output: squared norms.
    Update {
        group: usize,
        delivered: bool,
        updates: Vec<Option<WireUpdate>>,
    },
    /// Input: a tensor to be kept until a command takes it. No output.
    Deliver { tag: Tag },
    /// Output: what was measured of a group's step of so many micro-batches; see
    /// [`StepTimes`](crate::StepTimes).
    Times { group: usize, microbatches: usize },
    /// Input: hidden states, except at the first stage. Output: hidden states.
    Infer {
        group: usize,
        microbatch: WireMicrobatch,
        cache: Option<u64>,
    },
    /// Input: hidden states. Output: losses.
    TargetLosses { targets: WireTargets },
    /// Input: hidden states. Output: logits.
    Logits,
    /// A cache like another one. No output.
    CopyCache { from: u64, to: u64 },
    /// No output.
    DropCache { cache: u64 },
    /// The time, and the memory. Answered.
    Pulse,
}

impl Command {
    /// Whether the first output is an [`Answer`].
    pub(super) fn is_answered(&self) -> bool {
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

    /// What it takes of what was delivered.
    pub(super) fn takes(&self) -> Option<Tag> {
        match *self {
            Self::Forward {
                at,
                delivered: true,
                ..
            } => Some(Tag::Hidden(at)),
            Self::Backward {
                at,
                delivered: true,
            } => Some(Tag::Gradient(at)),
            Self::AddSquares {
                group,
                delivered: true,
            } => Some(Tag::SquaresAbove(group)),
            Self::Update {
                group,
                delivered: true,
                ..
            } => Some(Tag::Squares(group)),
            _ => None,
        }
    }

    /// Whether it says nothing of a stage, so that it must not wait for one either.
    pub(super) fn is_talk(&self) -> bool {
        matches!(
            self,
            Self::Ping | Self::Hello(_) | Self::Health | Self::Pulse
        )
    }
}

/// Who wants a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) protocol: u32,
    pub(super) version: String,
    /// Key of the controller.
    pub(super) controller: [u8; 32],
    /// The model's configuration, a field a line.
    pub(super) config: String,
}

/// What a stage consists of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LoadOrder {
    /// First layer of each range that groups take in turn, and the one after its last; see
    /// [`StageLayers`](crate::StageLayers).
    pub(super) layers: Vec<[usize; 2]>,
    pub(super) dtype: WireDtype,
    pub(super) gradient_checkpointing: bool,
    /// Of the weights; see [`digest`](super::digest).
    pub(super) digest: [u8; 32],
}

/// What a worker says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    /// The worker is the controller's, under this number.
    Yours {
        lease: u64,
        /// Passes are computed by the CPU while they are called.
        on_cpu: bool,
        /// What the device can compute in.
        dtypes: Vec<WireDtype>,
    },
    Slot(usize),
    Loaded {
        /// Of the layers' weights as they are in memory.
        weight_bytes: u64,
        /// What multiplies matrices.
        products: String,
    },
    Pulse {
        /// Seconds of the worker's clock.
        time: f64,
        /// Where the device can tell.
        reserved_bytes: Option<u64>,
    },
    /// What went wrong first.
    Health(Option<Trouble>),
    Refused(WorkerError),
}

impl Answer {
    /// With texts of at most so many bytes.
    pub(super) fn shortened(&self, limit: usize) -> Self {
        let cut = |text: &str| {
            let mut end = limit.min(text.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text[..end].to_owned()
        };
        let third = |text: &str| {
            let mut end = (limit / 3).min(text.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text[..end].to_owned()
        };
        match self {
            Self::Health(Some(trouble)) => Self::Health(Some(Trouble {
                reason: cut(&trouble.reason),
                inherited: trouble.inherited,
            })),
            Self::Refused(WorkerError::Failed { reason }) => {
                let reason = cut(reason);
                Self::Refused(WorkerError::Failed { reason })
            }
            Self::Refused(WorkerError::Mismatch {
                what,
                worker,
                controller,
            }) => Self::Refused(WorkerError::Mismatch {
                what: third(what),
                worker: third(worker),
                controller: third(controller),
            }),
            other => other.clone(),
        }
    }
}

/// Why a worker could not do something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trouble {
    pub(super) reason: String,
    /// It did not get what another stage should have sent.
    pub(super) inherited: bool,
}

/// A [`FloatDType`] that weights are computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WireDtype {
    Float32,
    Float16,
    Bfloat16,
}

impl WireDtype {
    pub(super) const ALL: [Self; 3] = [Self::Float32, Self::Float16, Self::Bfloat16];

    pub(super) fn new(dtype: FloatDType) -> Option<Self> {
        match dtype {
            FloatDType::F32 => Some(Self::Float32),
            FloatDType::F16 => Some(Self::Float16),
            FloatDType::BF16 => Some(Self::Bfloat16),
            _ => None,
        }
    }

    pub(super) fn dtype(self) -> FloatDType {
        match self {
            Self::Float32 => FloatDType::F32,
            Self::Float16 => FloatDType::F16,
            Self::Bfloat16 => FloatDType::BF16,
        }
    }
}

/// A [`LoraSpec`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct WireSpec {
    r: usize,
    lora_alpha: f64,
    use_rslora: bool,
    lora_dropout: f64,
}

impl From<LoraSpec> for WireSpec {
    fn from(spec: LoraSpec) -> Self {
        Self {
            r: spec.r,
            lora_alpha: spec.lora_alpha,
            use_rslora: spec.use_rslora,
            lora_dropout: spec.lora_dropout,
        }
    }
}

impl From<WireSpec> for LoraSpec {
    fn from(spec: WireSpec) -> Self {
        Self::new(spec.r, spec.lora_alpha)
            .with_use_rslora(spec.use_rslora)
            .with_lora_dropout(spec.lora_dropout)
    }
}

/// A [`SlotUpdate`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct WireUpdate {
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    weight_decay: f64,
    max_grad_norm: f64,
    step: u64,
}

impl From<SlotUpdate> for WireUpdate {
    fn from(update: SlotUpdate) -> Self {
        Self {
            learning_rate: update.learning_rate,
            beta1: update.beta1,
            beta2: update.beta2,
            epsilon: update.epsilon,
            weight_decay: update.weight_decay,
            max_grad_norm: update.max_grad_norm,
            step: update.step,
        }
    }
}

impl From<WireUpdate> for SlotUpdate {
    fn from(update: WireUpdate) -> Self {
        Self {
            learning_rate: update.learning_rate,
            beta1: update.beta1,
            beta2: update.beta2,
            epsilon: update.epsilon,
            weight_decay: update.weight_decay,
            max_grad_norm: update.max_grad_norm,
            step: update.step,
        }
    }
}
