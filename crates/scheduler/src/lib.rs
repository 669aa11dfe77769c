//! Which adapters train in the next iteration, and in which groups.
//!
//! A [`Task`] is one adapter to train. At every iteration boundary the trainer asks a [`Scheduler`]
//! to [`decide`](Scheduler::decide), trains the groups it names, and reports tasks that have ended.
//! [`TaskScheduler`] is the one with priorities that preempt, backfilling and fair sharing; what fits
//! beside what it asks a [`Room`].
//! Decisions are pure functions of what a scheduler was told: no clock, no files, no devices, no
//! randomness, so the same calls give the same decisions anywhere.

mod decision;
mod error;
mod first_come_first_served;
mod grouping;
mod measured;
mod memory;
mod nnls;
mod policy;
mod room;
mod scheduler;
pub mod simulate;
mod state;
mod step_time;
mod sweep;
mod task;

pub use decision::{Admission, Decision, Parking};
pub use error::SchedulerError;
pub use first_come_first_served::FirstComeFirstServed;
pub use grouping::{
    Budget, GroupedRoom, GroupingOptions, NaiveRoom, OneTaskPerGroup, Unlimited, balanced_groups,
    group_count,
};
pub use measured::{MeasuredIteration, MeasuredTask};
pub use memory::{
    Basis, Coefficients, DeviceMemory, Estimate, Fit, Forecasts, LearntMemory, Measurement,
    MemoryModel, Probe, Shortage,
};
pub use policy::{
    Explanation, FairShares, History, Learnt, Ledger, OutOfMemory, Past, Policy, SchedulerOptions,
    TaskScheduler,
};
pub use room::{Member, Refusal, Room};
pub use scheduler::Scheduler;
pub use state::{Outcome, TaskState};
pub use step_time::{Padding, StepTimeFit, StepTimeModel, StepTimes, Work};
pub use sweep::{Asha, Diverged, Divergence, Rungs, Stop, SweepError};
pub use task::{Load, Task, TaskId};
