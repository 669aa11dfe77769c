//! Stages on workers, which here are threads of the same process behind a real socket.
#![expect(
    clippy::unwrap_used,
    reason = "a failure here is a failed test, in helpers too"
)]

mod alone;
mod bubble;
mod handshake;
mod same_bits;
mod scenarios;
mod sleeping;
mod staggered;
mod support;
