//! Adapters in training: their rows, state and location.

mod advice;
mod cursor;
mod described;
mod diagnosis;
mod inspect;
mod placement;
mod prepare;
mod reader;
mod references;
mod rows;
mod slora;
mod snapshot;
mod start_values;
mod step_rows;
mod table;
mod task;
mod trials;
mod warnings;

pub use advice::advice;
#[cfg(test)]
pub(crate) use cursor::Cursor;
pub(crate) use described::RunShape;
pub(crate) use diagnosis::{Liveness, liveness, not_finite};
pub use inspect::{Inspected, inspect};
pub(crate) use placement::Placement;
pub use prepare::DatasetSummary;
pub(crate) use prepare::{Prepared, TaskFactory, short};
pub(crate) use reader::{ReadTask, Reader};
pub(crate) use rows::RowCache;
pub use rows::{EncodedRows, check_vocabulary};
pub use slora::start_warning;
pub(crate) use snapshot::{Rewind, Snapshot};
pub(crate) use start_values::StartCost;
pub(crate) use step_rows::StepRows;
pub(crate) use table::{SlotLocation, Tasks};
pub use task::total_steps;
pub(crate) use task::{State, SubmittedStep, Task, TaskData};
pub(crate) use trials::{Trial, Trials};
pub use warnings::{
    init_from_warnings, model_warnings, rank_warning, setting_warnings, sweep_warnings,
};
