//! A trainer that takes its tasks from a durable queue, and its clients.
//!
//! [`Server`] owns a run directory: it trains the tasks of its [`queue`] and writes their progress back.
//! [`Client`] is any other process: it submits tasks, asks for them to be paused, resumed or cancelled,
//! and reads their status. Both communicate only through files of the run directory: the queue, the
//! server's lock and its configuration. [`http`] lets other machines do the same over a network.

mod client;
mod error;
mod files;
pub mod http;
mod printed;
pub mod queue;
mod queue_bridge;
mod server;
mod spec;
mod status;
mod watch;

pub use client::{Client, Submitted};
pub(crate) use error::Result;
pub use error::{ServerError, with_causes};
pub use printed::{AskedTask, ExplainedEvent, ExplainedTask, SubmittedTasks};
pub use server::{LoadedServer, Server, configuration};
pub use status::{Status, TaskStatus};
