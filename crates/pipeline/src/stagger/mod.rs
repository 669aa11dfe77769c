//! Partitions that differ from group to group, so that stages are more even on average than whole
//! layers allow for any one of them.
//!
//! Thirty-two layers and a head worth half a layer are not even on eight stages: four layers on each,
//! and the last has an eighth more work than the others. Had every stage 4.06 layers' time, the
//! pipeline would be 1.11 times as fast. It can be so over a round of groups: a group has five layers
//! on some stage and three on another, and a stage that has more to do for one group has less for the
//! next.

mod clock;
mod draws;
mod ideal;
mod search;

pub use search::stagger;
