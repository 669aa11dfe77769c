//! Which tasks train together: as many groups as keep a pipeline full, no task slowed down by its
//! neighbours beyond a bound, and more tokens a second than the tasks would have one after another.
//!
//! # Slowdown
//!
//! A device that k tasks share gives each 1/k of its time. A task's slowdown is the time between two
//! of its optimizer steps, over what it would be if it had its share to itself:
//!
//! slowdown(j) = p(j) · T / (k · t(j))
//!
//! T are the seconds of an iteration, t(j) the seconds of a step of j alone on the device, and p(j)
//! the iterations that a step of j is spread over. k equal tasks have a slowdown of 1 or less: less
//! by what they save by sharing a pass. tLoRA, whose bound this is (arXiv 2602.07263), compares with
//! the job alone on its own devices, and pools the devices of the jobs that it groups; a group there
//! has k jobs' devices. Here the devices are given and tasks come to share them, so "alone" is each
//! on its share. A comparison with the whole device would count being one of k tasks, which is what
//! the user asked for, as a loss.
//!
//! Where the D stages of a pipeline share their devices, all groups take part in each iteration and
//! a task waits for all of them. A stage is busy for t(g) with group g, so that
//!
//! T = max(Σ t(g), D · max t(g)),
//!
//! the second where groups are too few or too unequal to keep D stages full. The share is that of all
//! tasks of all groups: slowdown(j) = p(j) · T / (max(k, D) · t(j)), where t(j) are a stage's seconds
//! and fewer than D tasks cannot fill the pipeline at best.
//!
//! # Nano-batches
//!
//! A short task beside a long one has a large slowdown, until the step of the long one is spread over
//! p iterations. `Company` finds the least spreading, longest task first, with which nobody exceeds
//! the bound, the long task included; if there is any such p(j), powers of two, it finds one.
//!
//! # Throughput
//!
//! A group must not be slower than the same steps one after another: T ≤ D · Σ t(j) / p(j). With
//! p = 1 that is "tokens a second together ≥ Σ tokens / Σ seconds alone"; with p > 1 both sides do
//! 1/p(j) of a step of j in an iteration. The comparison with whole steps on the right alone would
//! refuse every nano-batch, because it lets the long task's efficient batch count in full on one side
//! only. And padding a group's rows to its longest must not cost more than sharing a pass saves.
//!
//! # Until step times are known
//!
//! nobody is refused for slowdown or throughput, nothing is split, and groups are filled so that their
//! tokens are about equal.

mod asked;
mod balanced;
mod budget;
mod company;
mod grouped_room;
mod layout;
mod naive_room;
mod one_task_per_group;
mod options;
mod pass;
mod planner;
mod profile;
mod regroup;
mod rejection;
mod split;

pub use balanced::{balanced_groups, group_count};
pub use budget::{Budget, Unlimited};
pub use grouped_room::GroupedRoom;
pub use naive_room::NaiveRoom;
pub use one_task_per_group::OneTaskPerGroup;
pub use options::GroupingOptions;
