//! Models and datasets of the Hugging Face Hub: their names, and the cache on this machine as
//! `huggingface_hub` lays it out.

mod cache;
mod name;

pub use cache::{Cache, NotCached};
pub use name::{HubFiles, Kind, Repository};
