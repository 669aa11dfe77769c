//! The virtual clock, and traces under every policy.

mod replay;
mod simulate;
