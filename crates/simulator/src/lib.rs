//! A job trace on a virtual clock, scheduled by the code that schedules training.
//!
//! Real are the scheduler with its policies, grouping and models of memory and time, and the arrivals,
//! durations and tenants of the trace. Simulated are the devices, whose iterations take what [`Costs`]
//! says, and what a trace does not tell: rank, batch size and length of a job ([`Workload`]).

mod chart;
mod comparison;
mod costs;
mod device;
mod devices;
mod engine;
mod error;
mod fairness;
mod fit;
mod metrics;
mod pace;
mod padding;
mod policy;
mod progress;
mod random;
mod rate_limit;
mod replay;
mod rooms;
mod simulation;
mod trace;
mod workload;

pub use chart::chart_svg;
pub use comparison::{Comparison, PolicyResult};
pub use costs::Costs;
pub use devices::Devices;
pub use engine::replay;
pub use error::SimulationError;
pub use fit::{FittedCosts, TimedIteration};
pub use metrics::Metrics;
pub use pace::Pace;
pub use padding::Padding;
pub use policy::SimulatedPolicy;
pub use replay::{DecisionTime, Moment, Replay, ReplayedJob};
pub use simulation::Simulation;
pub use trace::{TracedJob, read_trace};
pub use workload::{Job, Workload};
