//! The layers of each stage.

mod balance;
mod clock;
mod costs;
mod layers;
mod measure;
mod stagger;

pub use balance::{PartitionError, partition};
pub use costs::PartCosts;
pub use layers::{Partitions, StageLayers};
pub use stagger::stagger;
