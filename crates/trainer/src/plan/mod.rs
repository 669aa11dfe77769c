//! Predicts a run before it starts: the contents of each stage, the tasks that share a batch, and the idle share of
//! the pipeline. Reads no weight and opens no device.
//!
//! Weights, adapters and moments are counted exactly. Activations, costs and with them the balance and the bubble are
//! estimates, for the data's average step; [`Plan::notes`] lists their omissions.

mod admission;
mod compose;
mod gather;
mod groups;
mod notes;
mod predict;
mod report;
mod workload;

pub(crate) use notes::NOT_STAGGERED;
pub use predict::Speeds;
pub use report::{Plan, PlannedBubble, PlannedGroup, PlannedLink, PlannedStage};
