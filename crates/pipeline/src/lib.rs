//! The backbone as stages: each holds contiguous decoder layers on one device, with their adapters
//! and optimizer state, and runs them forward, backward and through an optimizer step.
//!
//! [`partition()`] says which layers a stage holds, or [`stagger()`], where groups of adapters have
//! their layers on different stages; [`schedule`] in which order a stage works for several groups,
//! [`simulate`] how long that takes. They are functions of numbers and know no device. [`Pipeline`]
//! holds the stages, [`executor`] has them work through their lists.

mod any_stage;
mod device_memory;
mod device_name;
mod error;
pub mod executor;
mod host_memory;
mod local_stage;
mod measurement;
mod memory_gauge;
mod microbatch;
mod microbatch_id;
mod part_costs;
mod part_seconds;
mod partition;
mod partitions;
mod pass_times;
mod pipeline;
#[cfg(feature = "remote")]
pub mod remote;
mod remote_inbox;
pub mod schedule;
pub mod simulate;
mod stage;
mod stage_adapters;
mod stage_clock;
mod stage_layers;
mod stagger;
mod tag;
mod tape;
mod train_stage;
mod transfer;

pub use any_stage::AnyStage;
pub use device_memory::device_memory;
pub use device_name::device_name;
pub use error::PipelineError;
pub use host_memory::HostMemory;
pub use measurement::Measurement;
pub use memory_gauge::MemoryGauge;
pub use microbatch::Microbatch;
pub use microbatch_id::MicrobatchId;
pub use part_costs::PartCosts;
pub use part_seconds::PartSeconds;
pub use partition::{Balance, PartitionError, partition};
pub use partitions::Partitions;
pub use pass_times::{MicrobatchTimes, PassTimes, StepTimes};
pub use pipeline::{Caches, Pipeline};
pub use remote_inbox::RemoteInbox;
pub use stage::Stage;
pub use stage_clock::StageClock;
pub use stage_layers::StageLayers;
pub use stagger::stagger;
pub use tag::Tag;
pub use train_stage::{Forwarded, TrainStage};

pub(crate) use tape::{StageGradients, Tape};
