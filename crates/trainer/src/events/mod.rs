//! Events of a run: lines of `events.jsonl`, and calls of its observer, which may also give commands.

mod event;
mod log;
mod source;

pub use event::{EVENT_VERSION, Event, Rewards, Versions};
pub(crate) use log::EventLog;
pub use source::{NewTask, TaskCommand, TaskSource};
