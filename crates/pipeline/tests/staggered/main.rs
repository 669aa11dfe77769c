//! Groups with their layers on different stages, here and on workers. A test of its own: what Burn
//! leaves behind of ended sessions makes a process with many of them slow.
#![cfg(feature = "remote")]
#![expect(
    clippy::unwrap_used,
    reason = "a failure here is a failed test, in helpers too"
)]

mod same_bits;
#[path = "../remote/scenarios.rs"]
mod scenarios;
#[path = "../remote/support.rs"]
#[expect(dead_code, reason = "some of it is for the tests of workers")]
mod support;
