//! The section `pipeline`: stages and their schedule.

mod balance;
mod resolve;
mod settings;
mod stage;
mod worker;

pub use balance::BalanceChoice;
pub(crate) use resolve::{resolve, warn};
pub use settings::{PipelineConfig, Schedule};
pub use stage::StageLocation;
pub use worker::WorkerAddress;
