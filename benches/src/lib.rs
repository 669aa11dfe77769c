//! Models with random weights and data to go with them, for benchmarks: their values do not matter
//! to speed, their shapes do.

mod model;
mod shape;

pub use model::write_model;
pub use shape::Shape;
