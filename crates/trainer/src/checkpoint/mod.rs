//! Everything that a run needs to resume: `checkpoints/<iteration>/` of a run directory.
//!
//! A checkpoint is a directory that appears atomically, when all of it is on the disk. It is named after the
//! iteration of the run that precedes it, since tasks are at different steps of their own.
//!
//! ```text
//! checkpoints/120/manifest.json             length and BLAKE3 of every other file
//! checkpoints/120/run.json                  the run and its tasks, see RunRecord
//! checkpoints/120/learnt.json               measurements of the devices, if there are any
//! checkpoints/120/tasks/<name>.safetensors  adapter and moments of a task that has begun
//! ```
//!
//! Data order, dropout and schedules are functions of a task's own step and seed, so there is no
//! other state.

mod compare;
mod digest;
mod draft;
mod exact;
mod generation;
mod record;
mod saved_run;
mod staged;
mod tensors;
mod tidy;

pub(crate) use compare::config_value;
pub(crate) use digest::data_digest;
pub(crate) use draft::{Draft, Tensors};
pub(crate) use exact::Exact;
pub(crate) use record::{
    BestRecord, FORMAT, LedgerRecord, RunRecord, Standing, TaskRecord, TrialResult,
};
pub use saved_run::{SavedRun, SavedTask, check_model, trained_over};

const MANIFEST: &str = "manifest.json";
const RECORD: &str = "run.json";
const LEARNT: &str = "learnt.json";

/// Path of a task's tensors in a checkpoint.
fn tensors_file(adapter: &str) -> String {
    format!("tasks/{adapter}.safetensors")
}
