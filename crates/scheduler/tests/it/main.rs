//! Policies, grouping, the models of memory and time, and sweeps.

mod grouping;
mod memory;
mod policy;
mod step_time;
mod sweep;
