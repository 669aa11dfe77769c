//! The decoder against transformers' logits, and its operations against slow references.
//!
//! Everything runs on the CPU; `LORALOOM_TEST_DEVICE=wgpu` chooses a GPU, in builds that have it.

mod adapters;
mod attention;
mod cross_entropy;
mod head;
mod layer;
mod logits;
mod ops;
mod support;
