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
mod exact;
mod generation;
mod record;
mod saved_run;
mod staged;
mod tensors;
mod tidy;
mod writer;

pub(crate) use compare::config_value;
pub(crate) use digest::data_digest;
pub(crate) use exact::ExactF64;
pub(crate) use record::{
    BestRecord, FORMAT, LedgerRecord, RecordState, RunRecord, TaskRecord, TrialResult,
};
pub use saved_run::{SavedRun, SavedTask, check_model, trained_over};
pub(crate) use writer::{CheckpointWriter, Tensors};

const MANIFEST: &str = "manifest.json";
const RECORD: &str = "run.json";
const LEARNT: &str = "learnt.json";

/// Path of a task's tensors in a checkpoint.
fn tensors_file(adapter: &str) -> String {
    format!("tasks/{adapter}.safetensors")
}
