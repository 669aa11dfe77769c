//! The loop of a run: decide, train, follow up.

mod announce;
mod follow_up;
mod iterations;
mod preference;
mod rewind;
#[expect(clippy::module_inception, reason = "the run itself")]
mod run;
mod serving;
mod session;
mod signals;
mod window;

pub use run::Run;
pub use signals::Signals;
