use std::ops::Range;

use batchlora::BatchLoraError;
use loraloom_model::ModelError;
use loraloom_scheduler::sizes;
use thiserror::Error;

use crate::{PartitionError, simulate::TimelineError};

/// Error of a pipeline or a stage.
#[derive(Debug, Error)]
pub enum PipelineError {
    /// Weights or adapters cannot be read or do not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Adapters and batch do not fit each other.
    #[error(transparent)]
    Adapter(#[from] BatchLoraError),
    /// There is no such group.
    #[error("group {group} does not exist, there are {groups}")]
    NoSuchGroup {
        /// The group asked for.
        group: usize,
        /// Groups there are.
        groups: usize,
    },
    /// The stages do not run every layer once and in order.
    #[error("stages of layers {layers:?} do not cover each layer of the model once and in order")]
    Gap {
        /// The stages' layers.
        layers: Vec<Range<usize>>,
    },
    /// The stages have different numbers of partitions.
    #[error("groups take turns of {turns:?} on the stages, but all must be equal")]
    Turns {
        /// Ranges of layers, by stage.
        turns: Vec<usize>,
    },
    /// A token has no block in a cache.
    #[error("keys and values have no place in the cache: {0}")]
    Blocks(String),
    /// Layers cannot be spread over the stages.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// A schedule cannot be executed.
    #[error(transparent)]
    Schedule(#[from] TimelineError),
    /// A pass took more memory than the stage may use.
    #[error(
        "out of memory: stage of layers {layers:?} took {}, its limit is {}",
        sizes(*used, *limit)[0], sizes(*used, *limit)[1]
    )]
    OutOfMemory {
        /// Decoder layers of the stage.
        layers: Range<usize>,
        /// Peak of the bytes in use.
        used: u64,
        /// Bytes it may use.
        limit: u64,
    },
    /// The weights exceed the memory of the device.
    #[error(
        "layers {layers:?} take {} of weights in {dtype}, and the device has {}",
        sizes(*bytes, *there)[0], sizes(*bytes, *there)[1]
    )]
    TooLarge {
        /// Decoder layers of the stage.
        layers: Range<usize>,
        /// Bytes of its weights.
        bytes: u64,
        /// Their type.
        dtype: String,
        /// Bytes of the device.
        there: u64,
    },
    /// A pass lacks a result of an earlier one.
    #[error("stage of layers {layers:?}, {pass}: {problem}")]
    NothingUnderWay {
        /// Decoder layers of the stage.
        layers: Range<usize>,
        /// The pass.
        pass: &'static str,
        /// The missing result.
        problem: &'static str,
    },
    /// A stage ended because another one failed.
    #[error("stage {stage} stopped because another stage failed")]
    Stopped {
        /// The stage.
        stage: usize,
    },
    /// A list takes a message that no stage sent before.
    #[error("stage {stage} does not have {missing}")]
    NotSent {
        /// The stage.
        stage: usize,
        /// The tag of the message.
        missing: String,
    },
    /// The thread of a stage cannot be started.
    #[error("no thread for stage {stage}: {source}")]
    Thread {
        /// The stage.
        stage: usize,
        /// The error.
        source: std::io::Error,
    },
    /// A stage has no embedding or no head.
    #[error("stage of layers {layers:?} has no {part}")]
    NotHere {
        /// Decoder layers of the stage.
        layers: Range<usize>,
        /// The missing part.
        part: &'static str,
    },
    /// A stage on another machine is lost.
    #[error("stage {stage} on {address} is lost: {reason}")]
    StageLost {
        /// The stage.
        stage: usize,
        /// Its worker.
        address: String,
        /// The symptom.
        reason: String,
    },
    /// A worker refused or failed.
    #[cfg(feature = "remote")]
    #[error("stage {stage} on {address}: {problem}")]
    Worker {
        /// The stage.
        stage: usize,
        /// The worker.
        address: String,
        /// The error.
        problem: crate::remote::WorkerError,
    },
    /// Other machines cannot be reached.
    #[error("cannot reach other machines: {reason}")]
    Network {
        /// The error.
        reason: String,
    },
}
