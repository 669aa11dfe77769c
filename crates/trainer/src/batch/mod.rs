//! Rows of a group's tasks as micro-batches for the stages.

mod assemble;
mod evaluate;
mod iteration;
mod submitted;

pub use evaluate::Score;
pub(crate) use evaluate::evaluate;
pub(crate) use iteration::plan_iteration;
pub(crate) use submitted::{StepResult, SubmittedIteration};
