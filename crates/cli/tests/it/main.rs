//! The binary as people and scripts meet it: exit codes, messages, files.
#![expect(
    clippy::unwrap_used,
    reason = "a failure here is a failed test, in helpers too"
)]

#[cfg(unix)]
mod answering;
mod bench;
mod check;
#[cfg(all(feature = "remote", unix))]
mod cluster;
mod config;
mod device;
#[cfg(unix)]
mod docs;
#[cfg(target_os = "linux")]
mod durable;
mod eval;
#[cfg(unix)]
mod examples;
#[cfg(target_os = "linux")]
mod families;
mod full_disk;
mod generate;
#[cfg(unix)]
mod gone;
mod hub;
mod inference;
mod init;
mod memory;
mod merge;
mod mlora;
#[cfg(all(feature = "remote", target_os = "linux"))]
mod namespaces;
mod plan;
mod preview;
mod quantization;
#[cfg(unix)]
mod report;
mod resume;
mod scheduling;
#[cfg(unix)]
mod serve;
#[cfg(unix)]
mod server;
#[cfg(unix)]
mod serving_queue;
#[cfg(unix)]
mod signals;
mod simulate;
mod support;
#[cfg(target_os = "linux")]
mod terminal;
mod train;
mod usage;
#[cfg(unix)]
mod words;
#[cfg(all(feature = "remote", unix))]
mod worker;
mod working_directory;
