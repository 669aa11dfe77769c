//! The next step of every running task as work for the stages, and its results.

mod plan;
mod submitted;

pub(crate) use plan::plan_iteration;
pub(crate) use submitted::{StepResult, SubmittedIteration};
