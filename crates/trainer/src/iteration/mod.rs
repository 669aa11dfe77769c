//! The next step of every running task for the stages, and what it came to.

mod plan;
mod submitted;

pub(crate) use plan::plan_iteration;
pub(crate) use submitted::{StepResult, SubmittedIteration};
