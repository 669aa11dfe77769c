//! Configurations: what loads, with which defaults, and what is refused in which words.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod errors;
mod hub;
mod load;
mod load_options;
mod mlora;
mod patterns;
mod reference;
mod schedule;
mod schema;
mod slora;
mod stages;
mod support;
mod sweep;
mod sweep_errors;
