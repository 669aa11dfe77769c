//! Reports of a run, from the files in its directory: [a page of charts](RunHistory::page), [a
//! table](RunHistory::write_csv), [a dashboard](Dashboard) for terminals, [TensorBoard's
//! files](RunHistory::write_tensorboard), and the [leaderboards](SweepReport) of sweeps.
//!
//! `events.jsonl` is read by structs of this crate, not by the trainer's. A log outlives the version that wrote it:
//! here every field may be missing, unknown events and fields are skipped, and a line that cannot be read is counted
//! and skipped. It also lets this crate build and be tested without Burn.
//!
//! A run that is resumed repeats iterations, and so does one that ran out of memory: [`RunHistory`] keeps the final
//! ones.

mod absorb;
mod adapter;
mod answers;
mod csv;
mod dashboard;
mod error;
mod events;
mod history;
mod leaderboard;
mod page;
mod settings;
mod tensorboard;
mod thin;

pub use dashboard::Dashboard;
pub use error::ReportError;
pub use history::RunHistory;
pub use leaderboard::{SweepEntry, SweepReport, SweepStanding};
