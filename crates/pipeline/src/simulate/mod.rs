//! Schedules on a clock: the lists of [`schedule`](crate::schedule) executed with given costs and
//! links, to predict a run before it starts and to check schedules without devices.
//!
//! A group's iteration takes the passes of D + N − 1 micro-batches and 2(D − 1) transfers; no stage idles
//! where the other groups' work is at least as long. With passes of f and b seconds and transfers of c
//! that is
//!
//! ```text
//! L·N·(f + b) ≥ (D + N − 1)·(f + b) + 2(D − 1)·c
//! ```
//!
//! and needs more micro-batches in flight than D, see
//! [`extra_warmup`](crate::schedule::PipelineShape::extra_warmup). With L = D groups and N = 1
//! transfers are not hidden.

mod costs;
mod engine;
mod error;
mod gantt;
mod order;
mod report;

pub use costs::{Link, Links, PassCosts, ScheduleCosts};
pub use engine::simulate;
pub use error::TimelineError;
pub use gantt::{gantt_svg, gantt_text};
pub use order::submission_order;
pub use report::{Interval, StageReport, Timeline, Transfer, Window, bubble_gpipe, bubble_lorapp};

pub(crate) use order::{Order, Ordered};
