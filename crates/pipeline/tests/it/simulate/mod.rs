//! The simulator: its rules, the closed forms, and what LoRAPP gains.

#![allow(
    clippy::float_cmp,
    reason = "whole numbers are exact, and the same sums of the same numbers are the same"
)]

mod charts;
mod closed_forms;
mod gains;
mod refusals;
mod rules;
mod support;
