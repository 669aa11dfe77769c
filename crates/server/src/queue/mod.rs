//! The durable queue of a run directory.
//!
//! One server trains. Any number of other processes submit tasks, ask for them to be paused, resumed or
//! cancelled, and watch. They share one SQLite file, [`FILE_NAME`]; there is no network.
//!
//! - A task is accepted once [`Queue::submit`] has returned: by then it is on the disk, and neither a
//!   kill nor a power cut loses it.
//! - Tasks are ordered by their [`TaskId`](loraloom_scheduler::TaskId), which is assigned in order of
//!   arrival and never reused. Times are informative only.
//! - States change only under the server's lock ([`LockedQueue`]). Owners leave a [`Request`], which the
//!   server carries out. If there is no server, the process that asks takes the lock and carries it out.
//! - A file that is damaged, or is not a queue, is reported and left unchanged.
//!
//! The queue does not interpret a task's specification: it is text.

mod beginning;
mod check;
mod error;
mod file;
mod handle;
mod lock;
mod locked;
mod log;
mod request;
mod submit;
mod task;
mod write;

pub use error::QueueError;
use error::Result;
pub use file::FILE_NAME;
pub use handle::{Cursor, Queue};
pub use lock::{LOCK_NAME, Presence};
pub use locked::{LockedQueue, Progress, Recovered, Transition};
pub use request::{Answer, Request};
pub use submit::{Accepted, Submission};
pub use task::{EventKind, HistoryEntry, QueuedTask};
