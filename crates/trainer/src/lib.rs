//! A training run: several adapters over one frozen backbone.
//!
//! [`Run::prepare`] reads and checks everything, [`Run::train`] trains every adapter to its end and
//! keeps the run directory; [`Generator`] asks the result. At every iteration the scheduler says
//! which tasks train, each takes the rows of its own next step, and a group's tasks go through the
//! stages in one batch.

mod adapter;
mod announce;
mod answers;
mod assemble;
mod balance;
mod begin;
mod beginning;
mod checkpoint;
mod decision;
mod decode;
mod diagnosis;
mod dtype;
mod ending;
mod error;
mod evaluate;
mod event;
mod generator;
mod inspect;
mod intake;
mod iterations;
mod leaderboard;
mod ledger;
mod pace;
mod parts;
mod pending;
mod place;
mod plan;
mod prepare;
mod reader;
mod report;
mod rewind;
mod rows;
mod run;
mod run_directory;
mod sampling;
mod saving;
mod scheduling;
mod serving;
mod session;
mod snapshot;
mod stage_loader;
mod standby;
mod step;
mod task;
mod trials;
mod waiting;
mod window;
mod writer;

pub use adapter::targets;
pub use beginning::{odd_beginning, odd_rank};
pub use checkpoint::{SavedRun, SavedTask, check_model, trained_over};
pub use dtype::resolve_dtype;
pub use error::TrainerError;
pub use event::{EVENT_VERSION, Event, Versions};
pub use generator::Generator;
pub use inspect::{Inspected, inspect};
pub use intake::{NewTask, Order, Signals, SourceError, TaskSource};
pub use leaderboard::{SweepEntry, SweepReport, SweepStanding};
pub use pace::Pace;
pub use plan::{Plan, PlanError, PlannedBubble, PlannedGroup, PlannedLink, PlannedStage, Speeds};
pub use prepare::odd_settings;
pub use report::{AdapterReport, AnswerSample, Best, Outcome, RunReport};
pub use run::{DatasetSummary, Run};
pub use run_directory::{Identity, holds_run, refuse_in_use};
pub use sampling::GenerateOptions;
pub use scheduling::DeviceRoom;
pub use stage_loader::OpenedStage;
pub use standby::Standby;
