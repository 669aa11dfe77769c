//! Import of mLoRA's configurations (`dispatcher`, `datasets`, `adapters`, `tasks`).

mod file;
mod import;
mod kinds;
mod rows;

pub(crate) use import::{import, is_mlora};
