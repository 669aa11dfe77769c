//! A controller and its stages on workers.

mod controller;
mod line;
mod link;
mod stage;

pub use controller::{Controller, Reached, StageOrder};
pub use stage::RemoteStage;

pub(crate) use line::Line;
pub(crate) use stage::RemoteCache;
