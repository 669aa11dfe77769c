//! Import of mLoRA's configurations (`dispatcher`, `datasets`, `adapters`, `tasks`).

mod file;
mod import;
mod kinds;
mod objective;
mod rows;
mod whitespace;

pub(crate) use import::{import, is_mlora};
