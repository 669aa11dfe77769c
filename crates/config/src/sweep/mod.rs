//! The section `sweep`: adapters that differ in a few settings and are compared with each other.
//!
//! [`expand`] turns a grid into adapters before anything else is read, so the rest of the crate knows
//! adapters only. In a resolved configuration a sweep lists its adapters by name.

mod expand;
mod expansion;
mod file;
mod grid;
mod paths;
mod point_name;
mod resolve;
mod settings;
mod take_bases;
mod warn;

pub(crate) use expand::expand;
pub(crate) use expansion::Expansion;
pub(crate) use file::SweepFile;
pub(crate) use grid::flatten_grids;
pub(crate) use resolve::resolve;
pub use settings::{EarlyStopping, StoppingMetric, SweepConfig};
pub(crate) use take_bases::take_bases;
pub(crate) use warn::warn;
