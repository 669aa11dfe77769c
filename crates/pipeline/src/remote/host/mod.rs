//! A worker and the stage that it hosts.

mod lease;
mod operation;
mod receive_buffer;
mod state;
mod work;
mod worker;

pub use work::{MakeStandIn, StandIn};
pub use worker::{ServeError, Worker, WorkerOptions};
