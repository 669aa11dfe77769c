//! Policies, grouping, the models of memory and time, sweeps, and the simulator.

mod first_come_first_served;
mod grouping;
mod memory;
mod policy;
mod replay;
mod simulate;
mod step_time;
mod sweep;
