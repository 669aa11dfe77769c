//! The order of tasks.

mod apply;
mod entry;
mod fair;
mod history;
mod lifecycle;
mod options;
mod order;
mod placement;
mod reasons;
mod scheduler;

pub use fair::TenantCounters;
pub use history::{History, Learnt, Ledger, Past};
pub use lifecycle::OutOfMemory;
pub use options::{Policy, SchedulerOptions};
pub use scheduler::Scheduler;
