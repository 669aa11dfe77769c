//! Schedules on a clock: the lists of [`schedule`](crate::schedule) executed against given costs
//! and links, to predict a run before it starts and to check schedules without devices.
//!
//! A group's step takes the passes of D + N − 1 micro-batches and 2(D − 1) hops, whatever else runs;
//! no stage idles where the other groups' work is at least as long. With passes of f and b seconds
//! and hops of c that is
//!
//! ```text
//! L·N·(f + b) ≥ (D + N − 1)·(f + b) + 2(D − 1)·c
//! ```
//!
//! and needs more micro-batches in flight than D, see
//! [`extra_warmup`](crate::schedule::PipelineShape::extra_warmup). With L = D groups and N = 1 hops
//! are not hidden.

mod closed_form;
mod costs;
mod engine;
mod error;
mod gantt;
mod gantt_text;
mod link;
mod report;
mod stage;
mod submission;
mod warmup;

pub use closed_form::{bubble_gpipe, bubble_lorapp};
pub use costs::{Costs, PassCosts};
pub use engine::simulate;
pub use error::SimulationError;
pub use gantt::gantt_svg;
pub use gantt_text::gantt_text;
pub use link::{Link, Links};
pub use report::{Interval, Simulation, StageReport, Transfer, Window};
pub use submission::submission_order;
pub use warmup::best_warmup;
