//! The decoder and its files, against transformers, PEFT and slow references.
//!
//! Everything runs on the CPU; `LORALOOM_TEST_DEVICE=wgpu` chooses a GPU, in builds that have it.

mod checkpoint;
mod config;
mod decoder;
mod peft;
mod peft_refusals;
mod quantized;
mod rope;
