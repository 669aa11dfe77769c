//! Runs the lists of [`schedule`](crate::schedule) on devices.
//!
//! Every stage has its own thread, graphs and list. Stages exchange messages: hidden states go up and
//! their gradients down, each sent as soon as it exists. Where passes are computed in the call, as on
//! the CPU, the threads are the parallelism. Commands to a stage on another machine are sent ahead of
//! their execution, and its outputs are tensors that are still to be computed. With a single stage, or
//! one that cannot have a thread, as on GPUs, the calling thread runs all lists in one order.
//!
//! **The optimizer step** clips by the norm of a group's whole gradient, which is spread over the
//! stages. The last stage sends the squares of its own gradients to the stage below, each stage adds
//! its own, and the first, which ends its backward pass last, sends the total to all. A stage takes
//! the step just before the group's next forward pass, whose input comes by way of the first stage:
//! the total has arrived by then, and no stage waits for it.
//!
//! **Equal bits**: a list's operations are the same for any number of stages, every schedule sums a
//! group's micro-batches in the same order, and squares are added from the last layer to the first.

mod conductor;
mod mailbox;
mod readback;
mod run;
mod stage_loop;
mod times;

pub use mailbox::{RemoteInbox, Tag};
pub use run::{
    GroupOutcome, GroupPlan, IterationOutcome, IterationPlan, IterationPlanner, Passes, run,
};
pub use times::{
    MicrobatchTimes, PassTimes, PendingTimes, StageClock, StagePass, StageTimes, TransferTimes,
};

pub(crate) use mailbox::Transfer;
#[cfg(feature = "remote")]
pub(crate) use times::{Stopwatch, now};
