//! The directory of a run: its configuration, its events, and the lock of its writer.

mod claim;
mod directory;
mod identity;

pub(crate) use claim::Claim;
pub use claim::refuse_in_use;
pub use directory::holds_run;
pub(crate) use directory::{RunDirectory, adapter, is_run};
pub use identity::Identity;

/// Directory of a run's adapters, one directory each.
pub const ADAPTERS: &str = "adapters";
/// Directory of a run's checkpoints, one directory each.
pub const CHECKPOINTS: &str = "checkpoints";
/// File with the resolved configuration of a run, which loads like any other.
pub const CONFIG_FILE: &str = "config.resolved.yaml";
/// File with the events of a run.
pub const EVENTS_FILE: &str = "events.jsonl";
