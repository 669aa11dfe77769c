//! Results of a run and its adapters.

mod leaderboard;
mod pace;
mod run_report;

pub use leaderboard::{SweepEntry, SweepReport, SweepStanding};
pub use pace::Pace;
pub use run_report::{AdapterReport, AnswerSample, Best, Outcome, RunReport};
