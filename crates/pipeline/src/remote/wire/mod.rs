//! Messages between controller and worker.

mod adapter;
mod command;
mod envelope;
mod microbatch;

pub(super) use adapter::{Specs, put_together, shapes, take_apart};
pub(super) use command::{Answer, Command, Greeting, LoadRequest, StageFailure, WireCache};
pub(super) use envelope::{
    ANSWER, ANSWER_DTYPE, Envelope, answer_from_elements, answer_to_elements,
};
pub(super) use microbatch::WireMicrobatch;

/// Version of the messages, which both ends must share in addition to the version of the program.
pub(super) const PROTOCOL: u32 = 12;

/// Name of the custom operation that carries every command.
pub(super) const OPERATION: &str = "loraloom";

/// Number of times that a worker lists its device, one for each session. Every session has a thread
/// at the controller that polls thousands of times a second, so there are no spare ones.
pub(super) const SESSIONS: usize = 5;

/// The session of questions that must not wait for computing.
pub(super) const CONTROL: usize = 0;

/// The session that computes.
pub(super) const COMPUTE: usize = 1;

/// The session that hidden states arrive on. A session delivers tensors in order.
pub(super) const HIDDEN: usize = 2;

/// The session that gradients of hidden states arrive on.
pub(super) const GRADIENT: usize = 3;

/// The session that squares of gradients arrive on.
pub(super) const SQUARES: usize = 4;
