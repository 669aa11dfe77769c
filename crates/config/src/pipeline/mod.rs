//! The section `pipeline`: stages and their schedule.

mod balance;
mod endpoint_id;
mod resolve;
mod settings;
mod stage;
mod worker;

pub use balance::BalanceChoice;
pub(crate) use resolve::{resolve, warn};
pub use settings::{PipelineConfig, ScheduleChoice};
pub use stage::{ParseStageError, StageChoice};
pub use worker::{ParseWorkerError, WorkerAddress};
