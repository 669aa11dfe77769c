//! The section `sweep`: adapters that differ in a few settings and are compared with each other.
//!
//! A grid becomes adapters before anything else is read ([`expand`]), so a point is an adapter as any
//! other from there on. In a resolved configuration a sweep names its adapters.

mod expand;
mod expansion;
mod file;
mod grid;
mod paths;
mod point_name;
mod resolve;
mod settings;
mod warn;

pub(crate) use expand::expand;
pub(crate) use expansion::Expansion;
pub(crate) use file::SweepFile;
pub(crate) use grid::flatten_grids;
pub(crate) use resolve::resolve;
pub use settings::{EarlyStopping, StoppingMetric, SweepConfig};
pub(crate) use warn::warn;
