//! Linear layers in FP8 or integers, as other tools quantise them: made dense as they are read.
//!
//! A weight is `(code − zero) · scale`. Formats differ in where code, zero and scale of an element are.

mod dense;
mod formats;
mod parts;
mod values;

pub(super) use parts::weight_of;

#[cfg(test)]
mod tests;
