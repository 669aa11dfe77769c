//! The loop of a run: the scheduler decides, tasks train, and what follows from their steps is done.

mod announce;
mod follow_up;
mod iterations;
mod rewind;
#[expect(clippy::module_inception, reason = "the run itself")]
mod run;
mod serving;
mod session;
mod signals;
mod window;

pub use run::Run;
pub use signals::Signals;
