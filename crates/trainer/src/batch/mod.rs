//! Rows of a group's tasks as micro-batches for the stages.

mod assemble;
mod evaluate;

pub(crate) use assemble::{TargetRange, TaskPreference, TaskRows, assemble, trained_targets};
pub use evaluate::Score;
pub(crate) use evaluate::{evaluate, log_probs};
