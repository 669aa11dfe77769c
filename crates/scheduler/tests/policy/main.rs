//! What the scheduler's policies promise.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

mod aging;
mod backfill;
mod examples;
mod fair;
mod fifo;
mod happenings;
mod reference;
mod restart;
mod room;
mod speed;
mod world;
