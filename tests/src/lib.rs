//! What the tests of this package share: frozen models and jobs, runs over them, and comparisons.
#![expect(
    clippy::missing_panics_doc,
    reason = "a helper of tests panics where the test fails"
)]

mod compare;
mod deeper;
mod device;
mod fixed_groups;
mod fixture;
mod random;
mod random_room;
mod train;

pub use compare::{assert_close, assert_same_training, largest_relative_difference};
pub use deeper::Deeper;
pub use device::{device, keeps_bits};
pub use fixed_groups::FixedGroups;
pub use fixture::{Fixture, Job};
pub use random::Random;
pub use random_room::RandomRoom;
pub use train::{TrainedRun, losses, scheduler, train, train_and_look, train_with};
