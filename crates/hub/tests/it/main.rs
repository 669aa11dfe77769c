//! Downloads from a server of this process.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod download;
mod server;
