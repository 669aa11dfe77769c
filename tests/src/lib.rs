//! What the tests of this package share: frozen models and jobs, runs over them, and comparisons.

mod compare;
mod fixture;
mod train;

pub use compare::{assert_close, largest_relative_difference};
pub use fixture::{Fixture, Job};
pub use train::{TrainedRun, losses, train};
