//! The queue: what it accepts, keeps and refuses, also when killed, damaged or full.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(
    clippy::print_stdout,
    reason = "processes talk, and figures and seeds are printed"
)]

mod concurrent;
mod damage;
mod damaged_log;
mod http;
mod kill;
mod locked;
mod speed;
mod states;
#[cfg(unix)]
mod storage;
mod submit;
mod support;
