//! Stages: partitions, schedules, the executor, its simulator, and workers.

mod executor;
mod partition;
#[cfg(feature = "remote")]
mod remote;
mod schedule;
mod simulate;
mod stagger;
