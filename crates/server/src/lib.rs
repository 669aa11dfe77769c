//! A trainer that goes on for as long as there are tasks, and the way to it.
//!
//! [`Server`] has a run directory, trains what its queue holds and writes down there what becomes of
//! it. [`Client`] is any other process: it submits tasks, asks for them to be held, taken up again or
//! ended, and reads how they stand. They share the queue's file and nothing else.

mod client;
mod error;
mod files;
mod queue_bridge;
mod server;
mod spec;
mod status;
mod watch;

pub use client::{Client, Submitted};
pub use error::ServerError;
pub use server::{ServeOptions, Server, configuration};
pub use status::{Status, TaskStatus, is_explained};
