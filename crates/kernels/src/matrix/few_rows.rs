//! Products of few rows with a matrix whose columns are contiguous, such as a decode step's with a weight `[d_out, d_in]`.
//!
//! `gemm` copies such a matrix into panels, element by element, which takes longer than the product unless many rows share it.
//! Here a vector holds one element of each row, so that the matrix is read once, in its own order.

#![expect(
    clippy::inline_always,
    reason = "pulp's vectors need functions that are inlined"
)]

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::{DEPTH, Matrix, MatrixMut, Output};

/// Sums at a time, as many as hide the latency of a multiply-add.
const SUMS: usize = 8;
/// Columns that one thread takes at a time.
const BLOCK: usize = 8 * SUMS;

/// `out = [out +] scale · lhs · rhs`, where the columns of `rhs` are contiguous.
#[derive(Debug)]
pub(super) struct FewRows<'a, 'o> {
    pub(super) out: &'a mut MatrixMut<'o>,
    pub(super) output: Output,
    pub(super) scale: f32,
    pub(super) lhs: Matrix<'a>,
    pub(super) rhs: Matrix<'a>,
    pub(super) is_parallel: bool,
}

impl FewRows<'_, '_> {
    /// True if this processor has vectors that multiply and add with one rounding, which `gemm` then uses, too.
    pub(super) fn is_supported() -> bool {
        !matches!(Arch::new(), Arch::Scalar)
    }

    pub(super) fn multiply(self) {
        // More elements would be zeros. Zen 4 computes with two vectors of AVX2 in the time of one of AVX-512.
        #[cfg(target_arch = "x86_64")]
        if self.lhs.shape[0] <= pulp::x86::V3::F32_LANES
            && let Some(simd) = pulp::x86::V3::try_new()
        {
            return Simd::vectorize(simd, self);
        }
        Arch::new().dispatch(self);
    }
}

impl WithSimd for FewRows<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let ([m, k], n) = (self.lhs.shape, self.rhs.shape[1]);
        let panels = m.div_ceil(S::F32_LANES);
        let stride = panels * S::F32_LANES;
        let mut rows = vec![0f32; k * stride];
        pack(&mut rows, self.lhs, S::F32_LANES);
        let mut sums = vec![0f32; n * stride];
        if self.output == Output::Add {
            for (row, out) in self.out.rows().enumerate() {
                for (sums, out) in sums.chunks_exact_mut(stride).zip(out) {
                    sums[row] = *out;
                }
            }
        }
        let columns = self.rhs.transposed();
        let multiply = |(block, sums): (usize, &mut [f32])| {
            simd.vectorize(Block {
                simd,
                output: self.output,
                scale: simd.splat_f32s(self.scale),
                rows: S::as_simd_f32s(&rows).0,
                columns: columns.rows(block * BLOCK..n.min((block + 1) * BLOCK)),
                sums: S::as_mut_simd_f32s(sums).0,
            });
        };
        if self.is_parallel {
            sums.par_chunks_mut(BLOCK * stride)
                .enumerate()
                .for_each(multiply);
        } else {
            sums.chunks_mut(BLOCK * stride)
                .enumerate()
                .for_each(multiply);
        }
        for (row, out) in self.out.rows().enumerate() {
            for (sums, out) in sums.chunks_exact(stride).zip(out) {
                *out = sums[row];
            }
        }
    }
}

/// Panels of `lanes` rows, each with its columns one after another.
fn pack(packed: &mut [f32], rows: Matrix<'_>, lanes: usize) {
    let ([m, k], [row_stride, column_stride]) = (rows.shape, rows.strides);
    for (panel, packed) in packed.chunks_exact_mut(k * lanes).enumerate() {
        for (column, packed) in packed.chunks_exact_mut(lanes).enumerate() {
            for (row, value) in (panel * lanes..m).zip(packed) {
                *value = rows.data[row * row_stride + column * column_stride];
            }
        }
    }
}

struct Block<'a, S: Simd> {
    simd: S,
    output: Output,
    scale: S::f32s,
    /// `[panels, k]`.
    rows: &'a [S::f32s],
    columns: Matrix<'a>,
    /// `[columns, panels]`.
    sums: &'a mut [S::f32s],
}

impl<S: Simd> WithSimd for Block<'_, S> {
    type Output = ();

    #[inline(always)]
    fn with_simd<T: Simd>(self, _: T) {
        let (simd, [n, k]) = (self.simd, self.columns.shape);
        let panels = self.rows.len() / k;
        for first in (0..n).step_by(SUMS) {
            // The last column is repeated where there are fewer.
            let columns: [_; SUMS] =
                std::array::from_fn(|i| self.columns.row(n.min(first + i + 1) - 1));
            let count = SUMS.min(n - first);
            for start in (0..k).step_by(DEPTH) {
                let depth = start..k.min(start + DEPTH);
                let columns = columns.map(|column| &column[depth.clone()]);
                for panel in 0..panels {
                    let rows = &self.rows[panel * k..][depth.clone()];
                    let products = products(simd, rows, columns);
                    for (i, product) in products.into_iter().enumerate().take(count) {
                        let sum = &mut self.sums[(first + i) * panels + panel];
                        *sum = if start == 0 && self.output == Output::Replace {
                            simd.mul_f32s(self.scale, product)
                        } else {
                            simd.mul_add_f32s(self.scale, product, *sum)
                        };
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn products<S: Simd>(simd: S, rows: &[S::f32s], columns: [&[f32]; SUMS]) -> [S::f32s; SUMS] {
    let columns = columns.map(|column| &column[..rows.len()]);
    let mut sums = [simd.splat_f32s(0.0); SUMS];
    for (depth, row) in rows.iter().enumerate() {
        for (sum, column) in sums.iter_mut().zip(columns) {
            *sum = simd.mul_add_f32s(simd.splat_f32s(column[depth]), *row, *sum);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_with_fused_products_are_supported() {
        #[cfg(target_arch = "x86_64")]
        let is_fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        #[cfg(not(target_arch = "x86_64"))]
        let is_fused = cfg!(target_arch = "aarch64");
        assert!(!is_fused || FewRows::is_supported());
    }
}
