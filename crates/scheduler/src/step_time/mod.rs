//! How long an iteration takes, learned from iterations that were measured.

mod identified;
mod model;
mod step_times;
mod work;

pub(crate) use identified::identified;
pub use model::StepTimeModel;
pub use step_times::{StepTimeFit, StepTimes};
pub use work::Work;
