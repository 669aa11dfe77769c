//! A run before it starts: what each stage holds, which tasks share a batch, and how full the
//! pipeline is. No weight is read and no device is opened.
//!
//! Weights, adapters and moments are counted exactly. Activations, costs and with them the balance
//! and the bubble are estimates, of the data's average step; what each leaves out is in
//! [`Plan::notes`].

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
