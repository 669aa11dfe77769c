//! A controller and its stages on workers.

mod controller;
mod link;
mod stage;
mod worker_connection;

pub use controller::{Controller, Reached, StageSpec};
pub use stage::RemoteStage;

pub(crate) use stage::RemoteCache;
pub(crate) use worker_connection::WorkerConnection;
