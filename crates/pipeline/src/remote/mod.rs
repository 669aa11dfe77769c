//! Stages on other machines.
//!
//! A [`Worker`] hosts a whole stage: it reads the layers from its own disk and computes with the code
//! of a local stage, on the same kinds of devices. A [`Controller`] uses it as a [`RemoteStage`], which
//! sends commands as custom operations of Burn's remote backend. Neither weights nor single tensor
//! operations are sent: a micro-batch is a description and its activations, and these go from worker
//! to worker.
//!
//! **Sessions.** A worker lists its device several times, and each is a session, a queue of its own:
//! one for control, one that computes, and some for transfers. A transfer begins as soon as its tensor
//! is promised; the tensor is put into a buffer as soon as it arrives, and the computing session takes
//! it from there.
//!
//! **Trust.** A controller that has the token may let a worker compute. Both ends are identified by
//! their keys, messages are encrypted, and no relay or directory on the internet is used.
//!
//! **Failures.** A lost stage ends the run: [`Controller`] watches every session, and when one of them
//! ends closes all others, which ends every wait for one of them.

mod client;
mod connection;
mod error;
mod host;
mod wire;

pub use client::{Controller, Reached, RemoteStage, StageSpec};
pub use error::WorkerError;
pub use host::{MakeStandIn, ServeError, StandIn, Worker, WorkerOptions};

pub(crate) use client::{RemoteCache, WorkerConnection};
