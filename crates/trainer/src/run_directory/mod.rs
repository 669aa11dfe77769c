//! The directory of a run: its configuration, its events, and who may write there.

mod claim;
mod directory;
mod identity;

pub(crate) use claim::Claim;
pub use claim::refuse_in_use;
pub use directory::holds_run;
pub(crate) use directory::{RunDirectory, adapter, is_run};
pub use identity::Identity;

/// Adapters of a run, one directory each.
pub(crate) const ADAPTERS: &str = "adapters";
/// Checkpoints of a run, one directory each.
pub(crate) const CHECKPOINTS: &str = "checkpoints";
