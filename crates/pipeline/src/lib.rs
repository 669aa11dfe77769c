//! The backbone as stages: each holds contiguous decoder layers on one device, with their adapters
//! and optimizer state, and runs forward passes, backward passes and optimizer steps.
//!
//! [`partition()`] assigns layers to stages, and [`stagger()`] does so for each group of adapters
//! differently; [`schedule`] orders a stage's work for several groups, and [`simulate`] predicts its
//! time. These functions take numbers and use no device. A [`Pipeline`] holds the stages, and the
//! [`executor`] runs them.

mod error;
pub mod executor;
mod memory;
mod partition;
mod pipeline;
#[cfg(feature = "remote")]
pub mod remote;
pub mod schedule;
pub mod simulate;
mod stage;

pub use error::PipelineError;
pub use executor::{
    MicrobatchTimes, PassTimes, PendingTimes, RemoteInbox, StageClock, StageTimes, Tag,
};
pub use memory::{HostMemory, MemoryGauge, device_memory, device_name};
pub use partition::{PartCosts, PartitionError, Partitions, StageLayers, partition, stagger};
pub use pipeline::{Caches, Pipeline};
pub use stage::{
    Forwarded, Microbatch, MicrobatchId, PipelineStage, Stage, StageCache, TrainStage,
};
