//! A job trace on a virtual clock, scheduled by the code that schedules training.
//!
//! The scheduler is that of training, with its policies, grouping and models of memory and time. The trace
//! has the arrivals, durations and tenants of jobs; [`Workload`] draws their rank, batch size and length,
//! and [`Costs`] gives the time of an iteration on the simulated devices.

mod chart;
mod costs;
mod device;
mod engine;
mod error;
mod fairness;
mod fit;
mod metrics;
mod progress;
mod random;
mod rate_limit;
mod replay;
mod requests;
mod rooms;
mod simulation;
mod trace;
mod workload;

pub use chart::chart_svg;
pub use costs::Costs;
pub use device::{Devices, Padding};
pub use engine::replay;
pub use error::SimulationError;
pub use fairness::Fairness;
pub use fit::{FittedCosts, TimedIteration};
pub use metrics::{Comparison, Metrics, PolicyResult};
pub use replay::{ClockStep, DecisionTime, JobCounts, Replay, ReplayedJob};
pub use requests::{DrawnRequests, TracedRequest, read_requests};
pub use simulation::{SimulatedPolicy, Simulation};
pub use trace::{TracedJob, read_trace};
pub use workload::{Job, Workload};
