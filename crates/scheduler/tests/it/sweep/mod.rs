//! What asynchronous successive halving stops, what it keeps, and what that costs.

mod asha;
mod curves;
mod replay;
mod savings;
mod split_mix;
