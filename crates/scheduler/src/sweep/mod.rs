//! Sweeps: which of several tries are worth their remaining steps.
//!
//! Nothing here acts on a task that was not entered: tasks outside a sweep are never stopped.

mod asha;
mod divergence;
mod error;
mod rungs;

pub use asha::{Asha, Stop};
pub use divergence::{Diverged, Divergence};
pub use error::SweepError;
pub use rungs::Rungs;
