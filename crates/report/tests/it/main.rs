//! Reports of runs whose events are written here.
#![expect(
    clippy::unwrap_used,
    reason = "a failure here is a failed test, in helpers too"
)]

mod dashboard;
mod export;
mod history;
mod page;
mod support;
