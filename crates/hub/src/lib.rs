//! Models and datasets of the Hugging Face Hub: their names, the cache on this machine as
//! `huggingface_hub` lays it out, and downloads into it.

mod cache;
mod download;
mod error;
mod http;
mod name;

pub use cache::{Cache, NotCached};
pub use download::{Downloaded, Hub, is_model_file};
pub use error::HubError;
pub use name::{HubFiles, Kind, Repository};
