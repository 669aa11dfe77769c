//! The multi-adapter operator, its banks and its optimizer against slow references.
//!
//! Everything runs on the CPU; `LORALOOM_TEST_DEVICE=wgpu` chooses a GPU, in builds that have it.

mod adamw;
mod adamw_of_torch;
mod bank;
mod case;
mod dora;
mod embedding;
mod isolation;
mod layer;
mod nf4;
mod operator;
mod oracle;
mod primitives;
mod product;
mod refusals;
mod support;
#[cfg(feature = "cubecl")]
mod tensor_cores;
