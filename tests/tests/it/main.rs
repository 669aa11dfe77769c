//! Promises that cross crates.
//!
//! Everything runs on the CPU; `LORALOOM_TEST_DEVICE=wgpu` chooses a GPU, in builds that have it.

mod architecture;
mod checkpoints;
mod contrast;
mod engine;
mod evaluation;
mod fair_answers;
mod fair_shares;
mod frozen;
mod generation;
mod half_precision;
mod isolation;
mod late_reading;
mod liveness;
mod merge;
mod nano_batches;
mod nf4;
mod parity;
mod parking;
mod peft_files;
mod pipeline;
mod preferences;
mod run_directory;
mod service;
mod slora;
mod smoothing;
mod soft_cuda;
mod start_values;
mod sweep;
mod task_commands;
mod twin;
mod verify;
