//! The lists of [`schedule`](crate::schedule) on real devices.
//!
//! Every stage has a thread of its own, its own graphs and its own list. What stages need of each
//! other goes by post: hidden states up, their gradients down, each sent to where it is needed as
//! soon as it exists. Where passes are computed in the call, as on the CPU, the threads are the
//! parallelism; a stage on another machine is told what to do ahead of its doing it, and what it
//! posts is a promise. The thread that asks runs all lists itself, in one order, if there is one
//! stage or one that cannot have a thread, as on GPUs.
//!
//! **The optimizer step** clips by the norm of a group's whole gradient, which is spread over the
//! stages. The last stage posts the squares of its own to the stage below, that one its own on top
//! of them, and the first, which ends its backward pass last, the total to all. No stage waits for
//! it: a stage takes the step just before the group's next forward pass, which comes to it by way of
//! the first stage, so that the total is already there.
//!
//! **The same bits**: a list's operations are the same however many stages there are, a group's
//! micro-batches are summed in the same order by every schedule, and squares are added from the last
//! layer to the first.

mod asked;
mod conductor;
mod mailbox;
mod outcome;
mod plan;
mod readback;
mod run;
mod stage_loop;
mod transfers;

pub use outcome::{GroupOutcome, StepOutcome};
pub use plan::{GroupPlan, StepPlan};
pub use run::{Driver, Passes, Steps, run};
pub use transfers::Transfers;
