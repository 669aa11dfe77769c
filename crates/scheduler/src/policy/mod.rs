//! Whose turn it is.

mod apply;
mod entry;
mod fair;
mod history;
mod ledger;
mod lifecycle;
mod line;
mod memory;
mod options;
mod reasons;
mod reservation;
mod scheduler;
mod unplaced;
mod wait;
mod walk;

pub use entry::Past;
pub use history::{History, Learnt};
pub use ledger::Ledger;
pub use memory::OutOfMemory;
pub use options::{Policy, SchedulerOptions};
pub use scheduler::Scheduler;
