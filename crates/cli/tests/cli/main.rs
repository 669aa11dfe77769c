//! The binary as people and scripts meet it: exit codes, messages, files.
#![expect(
    clippy::unwrap_used,
    reason = "a failure here is a failed test, in helpers too"
)]

mod bench;
mod check;
mod config;
mod device;
mod generate;
mod init;
mod mlora;
mod plan;
mod simulate;
mod support;
mod train;
mod usage;
#[cfg(all(feature = "remote", unix))]
mod worker;
