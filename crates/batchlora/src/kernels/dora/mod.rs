//! DoRA: columns scaled by adapter, the gradient of their scales, the parts of an input that dropout keeps and drops, and
//! the norms of adapted weights. Every wide operand is read once and every result written once.

mod dropped;
mod norms;
mod scales;

use batchlora_kernels::launch::cubes;
use burn::backend::TensorMetadata;
use burn_cubecl::{cubecl::prelude::CubeCount, tensor::CubeTensor};

pub(super) use dropped::{join_dropped, matmul_add, split_dropped};
pub(super) use norms::norms;
pub(super) use scales::{scale_columns, scale_grad};

/// Units of a cube over vectors of a matrix.
const UNITS: usize = 256;
/// Units side by side along the columns of a sum.
const LANES: usize = 32;

/// Cubes of [`UNITS`] for every vector of a matrix.
fn over(tensor: &CubeTensor, size: usize) -> CubeCount {
    cubes((tensor.shape().num_elements() / size).div_ceil(UNITS))
}
