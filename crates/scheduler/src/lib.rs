//! Which adapters train in the next iteration, and in which groups.
//!
//! A [`Task`] is one adapter to train. At every iteration boundary the trainer asks a [`Scheduler`] to
//! [`decide`](Scheduler::decide), trains the groups it names, and reports what that took and which
//! tasks ended. A [`Policy`] says whose turn it is, a [`Room`] what fits beside what.
//!
//! Decisions are pure functions of what a scheduler was told: no clock, no files, no devices, no
//! randomness, so the same calls give the same decisions anywhere.

mod decision;
mod error;
mod grouping;
mod measured;
mod memory;
mod nnls;
mod policy;
mod room;
mod state;
mod step_time;
mod sweep;
mod task;

pub use decision::{Admission, Decision, Parking};
pub use error::SchedulerError;
pub use grouping::{Budget, GroupedRoom, GroupingOptions, Unlimited};
pub use measured::{MeasuredIteration, MeasuredTask};
pub use memory::{
    Coefficients, DeviceMemory, Estimate, Forecasts, LearntMemory, Measurement, MemoryModel,
    Shortage,
};
pub use nnls::nnls;
pub use policy::{History, Learnt, Ledger, OutOfMemory, Past, Policy, Scheduler, SchedulerOptions};
pub use room::{Member, Refusal, Room};
pub use state::{Outcome, TaskState};
pub use step_time::{StepTimeFit, StepTimeModel, StepTimes, Work};
pub use sweep::{Asha, Diverged, Divergence, Rungs, Stop, SweepError};
pub use task::{Load, Task, TaskId};
