//! The durable queue of a run directory.
//!
//! One server trains, and any number of other processes submit tasks, ask for them to be paused,
//! resumed or cancelled, and watch. They meet in one SQLite file, [`FILE_NAME`]; there is no network.
//!
//! - A task is accepted once [`Queue::submit`] has returned: the file is on the disk by then, and
//!   neither a kill nor a power cut takes it back.
//! - Tasks are ordered by their [`TaskId`], which is given in order of arrival and never given again.
//!   Times are kept for people only.
//! - Only the [`Server`] changes states. Owners leave a [`Request`], which the server carries out; while
//!   there is no server, whoever asks holds its lock for a moment and carries it out.
//! - A file that is damaged, or is not a queue, is reported and left as it is.
//!
//! What a task trains is opaque here: its specification is text.

mod answer;
mod changes;
mod check;
mod connection;
mod create;
mod error;
mod event;
mod header;
mod label;
mod lock;
mod log;
mod metric;
mod owner;
mod progress;
mod queue;
mod request;
mod schema;
mod server;
mod state;
mod stored;
mod submission;
mod submit;
mod task;
mod timestamp;
mod write;

pub use answer::Answer;
pub use changes::Cursor;
pub use error::QueueError;
pub use event::{Event, EventKind};
pub use lock::{LOCK_NAME, Presence};
pub use progress::Progress;
pub use queue::{FILE_NAME, Queue};
pub use request::Request;
pub use server::{Recovered, Server, Transition};
pub use state::TaskState;
pub use submission::Submission;
pub use submit::Accepted;
pub use task::{Task, TaskId};
