//! Rows of a group's tasks as micro-batches for the stages.

mod assemble;
mod evaluate;
mod step;
mod submitted;

pub(crate) use evaluate::evaluate;
pub(crate) use step::plan_step;
pub(crate) use submitted::{StepResult, SubmittedIteration};
