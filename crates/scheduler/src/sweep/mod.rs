//! Early stopping of sweeps: decides which trials are worth their remaining steps.
//!
//! A task that was not entered is never stopped.

mod asha;
mod divergence;
mod rungs;

pub use asha::{Asha, Stop};
pub use divergence::{Diverged, Divergence};
pub use rungs::{Rungs, SweepError};
