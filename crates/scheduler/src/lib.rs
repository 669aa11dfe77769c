//! Decides which adapters train next, and in which groups.
//!
//! A [`Task`] is one adapter to train. Between two windows of iterations the trainer calls
//! [`decide`](Scheduler::decide), trains the groups of the [`Decision`], and reports measured iterations
//! and the tasks that ended. A [`Policy`] orders the tasks; a [`Room`] decides which fit together.
//!
//! The crate has no clock, files, devices or random numbers: the same calls give the same decisions.

mod decision;
mod error;
mod grouping;
mod least_squares;
mod memory;
mod policy;
mod room;
mod state;
mod step_time;
mod sweep;
mod task;

pub use decision::{Admission, Decision, Parking};
pub use error::SchedulerError;
pub use grouping::{Budget, GroupedRoom, GroupingOptions};
pub use least_squares::nnls;
pub use memory::{
    Coefficients, DeviceMemory, Estimate, Forecasts, LearntMemory, Measurement, MemoryModel,
    Shortage, size, sizes,
};
pub use policy::{
    History, Learnt, Ledger, OutOfMemory, Past, Policy, Scheduler, SchedulerOptions, TenantCounters,
};
pub use room::{MeasuredIteration, MeasuredTask, Member, Refusal, Room};
pub use state::{TaskOutcome, TaskState};
pub use step_time::{StepTimeFit, StepTimeModel, StepTimes, Work};
pub use sweep::{Asha, Diverged, Divergence, Rungs, Stop, SweepError};
pub use task::{Load, Task, TaskId};
