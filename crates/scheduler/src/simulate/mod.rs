//! A job trace on a virtual clock, scheduled by the code that schedules training.
//!
//! What is real here: the scheduler, its policies, rooms and fitted models; arrivals, durations and
//! tenants of the trace. What is simulated: devices, whose iterations take what [`Costs`] says; and
//! what a trace does not tell, rank, batch size and length of a job ([`Workload`]).

mod chart;
mod costs;
mod device;
mod driver;
mod engine;
mod error;
mod fairness;
mod metrics;
mod progress;
mod random;
mod replay;
mod trace;
mod workload;

pub use chart::chart_svg;
pub use costs::Costs;
pub use driver::Driver;
pub use engine::{Devices, Pace, replay};
pub use error::SimulationError;
pub use metrics::Metrics;
pub use replay::{DecisionTime, Moment, Replay, ReplayedJob};
pub use trace::{TracedJob, read_trace};
pub use workload::{Job, Workload};
