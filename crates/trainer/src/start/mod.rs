//! Start values of adapters that are computed: from the inputs of projections, or from their weights.

mod eva;
mod incremental_pca;
mod random;
mod svd;
mod weights;

pub(crate) use eva::{Eva, components};
pub(crate) use weights::{olora, pissa};
