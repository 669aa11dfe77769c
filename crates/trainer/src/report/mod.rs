//! Results of a run and its adapters.

mod pace;
mod run_report;

pub use pace::Pace;
pub use run_report::{AdapterReport, AnswerSample, Best, Outcome, PeakMemory, RunReport};
