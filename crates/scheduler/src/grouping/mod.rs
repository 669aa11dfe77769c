//! Groups tasks: as many groups as keep a pipeline full, no task slowed down by its neighbours beyond a bound, and
//! more tokens a second than the tasks would have one after another.
//!
//! # Slowdown
//!
//! A device that k tasks share gives each 1/k of its time. A task's slowdown is the time between two
//! of its optimizer steps in its group, over what it would be with its share of the device to itself:
//!
//! slowdown(j) = p(j) · t(g) / (k · t(j))
//!
//! t(g) are the seconds of an iteration of the group, k its tasks, t(j) the seconds of a step of j
//! alone on the device, and p(j) the iterations that a step of j is spread over. k equal tasks have a
//! slowdown of 1 or less: less by what they save by sharing a pass. tLoRA, whose bound this is (arXiv
//! 2602.07263), compares with the job alone on its own devices, and pools the devices of the jobs
//! that it groups; a group there has k jobs' devices. Here the devices are given and tasks share
//! them, so "alone" means on the task's share. A comparison with the whole device would count as a loss
//! that a task is one of k, which the user asked for.
//!
//! Seconds follow from work: the passes of the task of the group that has the most of them (a step has one
//! for each micro-batch, and 1/p(j) of them in each of its parts), segments and tokens.
//!
//! # Nano-batches
//!
//! A short task beside a long one has a large slowdown, until the step of the long one is spread over
//! p iterations. `Group::split` finds the least spreading, longest task first, that keeps all tasks within
//! the bound, the long one included. The step with the least work of a group, by tokens or by cost, is
//! never spread for that.
//!
//! # Throughput
//!
//! A group must not be slower than the same steps one after another: t(g) ≤ Σ t(j) / p(j). With
//! p = 1 that is "tokens a second together ≥ Σ tokens / Σ seconds alone"; with p > 1 both sides do
//! 1/p(j) of a step of j in an iteration. A comparison with whole steps on the right alone would
//! refuse nearly every nano-batch, because it counts the long task's efficient batch in full on one
//! side only.
//!
//! # Pipelines
//!
//! All groups of a pipeline of D stages take part in each iteration. A stage is busy for t(g) with
//! group g, so that an iteration takes
//!
//! T = max(Σ t(g), D · max t(g)) seconds,
//!
//! the second if groups are too few or too unequal to keep D stages full. A task joins the group that
//! gives the pipeline most tokens a second, which makes groups equal; where they cannot be, steps of the
//! longest are split further (`level`). The bound limits what the tasks of a group cost each other; a task
//! is never refused because it waits for another group, since an empty stage helps no task. Throughput is compared for the pipeline as a whole: T ≤ D · Σ t(j) / p(j).
//!
//! # Unknown step times
//!
//! Until step times are known, no task is refused for slowdown or throughput, no step is split, and groups
//! are filled so that their tokens are about equal.

mod budget;
mod group;
mod grouped_room;
mod layout;
mod level;
mod options;
mod planner;
mod profile;

pub use budget::Budget;
pub use grouped_room::GroupedRoom;
pub use options::GroupingOptions;
