//! A worker and the stage that it hosts.

mod lease;
mod operation;
mod receive_buffer;
mod stand_in;
mod state;
mod work;
mod worker;

pub use stand_in::{MakeStandIn, StandIn};
pub use worker::{ServeError, Worker, WorkerOptions};
