//! A training run on one device: several adapters over one frozen backbone.
//!
//! [`Run::prepare`] reads and checks everything, [`Run::train`] trains every adapter to its end and
//! keeps the run directory; [`Generator`] asks the result. At every iteration the scheduler says
//! which tasks train, each takes the rows of its own next step, and one batch carries them all
//! through the stage.

mod adapter;
mod answers;
mod assemble;
mod bench;
mod decode;
mod dtype;
mod error;
mod evaluate;
mod event;
mod generator;
mod iterate;
mod pending;
mod plan;
mod readback;
mod report;
mod run;
mod run_directory;
mod sampling;
mod session;
mod step;
mod task;
mod train_step;

pub use bench::{
    BenchReport, EndToEndBench, EndToEndMeasurement, KernelBench, KernelMeasurement, Rung,
};
pub use error::TrainerError;
pub use event::{EVENT_VERSION, Event, Versions};
pub use generator::Generator;
pub use plan::{Plan, PlanError, PlannedBubble, PlannedGroup, PlannedLink, PlannedStage, Speeds};
pub use report::{AdapterReport, AnswerSample, Best, Outcome, RunReport};
pub use run::{DatasetSummary, Run};
pub use sampling::GenerateOptions;
