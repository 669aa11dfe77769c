//! Start values of adapters that are computed: from the inputs of projections, from their weights, or from a change of these.

mod eva;
mod incremental_pca;
mod random;
mod slora;
mod svd;
mod weights;

pub(crate) use eva::{Eva, components};
pub(crate) use slora::{Change, mask, mean, trained};
pub(crate) use weights::{olora, pissa};
