//! Stages on other machines.
//!
//! A [`Worker`] hosts a whole stage: it reads the layers from its own disk and computes with the
//! code and on the kind of device that a stage of the controller would. A [`Controller`] reaches it
//! as a [`RemoteStage`], which sends what is to be done as custom operations of Burn's remote
//! backend. Neither weights nor single tensor operations travel: a micro-batch is a description and
//! its activations, and those go from worker to worker.
//!
//! **Sessions.** A worker lists its device several times, and every one is a session, a queue of its
//! own: one to talk over, one to compute, and some for tensors on their way. A tensor is sent by a
//! way as soon as it is promised, and put into a buffer as soon as it is there; the computing session takes
//! it from there.
//!
//! **Trust.** Whoever holds the token may have a worker compute. Both ends are known by their keys,
//! what they say is encrypted, and no relay or directory on the internet is asked for anything.
//!
//! **Failing.** A stage that is lost ends the run: [`Controller`] watches every session, and once
//! one of them has ended closes all others, with which whoever waits for any of them stops waiting.

mod adapters;
mod address;
mod caches;
mod connection;
mod controller;
mod digest;
mod envelope;
mod error;
mod guard;
mod host;
mod lease;
mod line;
mod link;
mod monitor;
mod operation;
mod receive_buffer;
mod session;
mod stage;
mod stand_in;
mod wire;
mod wire_microbatch;
mod work;
mod worker;

pub use address::{AddressError, WorkerAddress};
pub use controller::{Controller, Reached, StageOrder};
pub use error::WorkerError;
pub use stage::RemoteStage;
pub use stand_in::StandIn;
pub use worker::{ServeError, Worker, WorkerOptions};

pub(crate) use caches::RemoteCache;
pub(crate) use line::Line;

/// What both ends must agree in beside the version of the program: raised when [`wire`] changes.
const PROTOCOL: u32 = 4;

/// The custom operation everything is sent as.
const OPERATION: &str = "loraloom";

/// How often a worker lists its device. Every session has a thread at the controller that looks for
/// work thousands of times a second, so there is one for every way and no more.
const SESSIONS: usize = 5;

/// The session that is talked over; it never carries work.
const CONTROL: usize = 0;

/// The session that computes.
const COMPUTE: usize = 1;

/// The session that hidden states arrive on. Tensors of a session arrive in order, each when those
/// before it are there.
const HIDDEN: usize = 2;

/// The session that gradients of hidden states arrive on.
const GRADIENT: usize = 3;

/// The session that squares of gradients arrive on.
const SQUARES: usize = 4;
