//! Products of matrices on GPUs: by cuBLAS, by Burn's kernels, and on software devices by a kernel of our own.

#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "cuBLAS and the driver are C")]
pub(crate) mod cublas;
#[cfg(feature = "cubecl")]
mod matmul;
mod report;
#[cfg(feature = "cubecl")]
mod software;

#[cfg(feature = "cubecl")]
pub use matmul::{is_software, matmul, matmul_onto};
pub use report::{product_failure, products};
