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

use proptest::prelude::ProptestConfig;

/// So many cases, or more if `PROPTEST_CASES` asks for more.
fn at_least(cases: u32) -> ProptestConfig {
    ProptestConfig::with_cases(cases.max(ProptestConfig::default().cases))
}
