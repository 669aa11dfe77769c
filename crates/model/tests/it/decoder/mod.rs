//! The decoder against transformers' logits, and its operations against slow references.

mod adapters;
mod attention;
mod cross_entropy;
mod head;
mod layer;
pub(crate) mod logits;
mod ops;
mod paged;
mod sampling;
pub(crate) mod support;
