//! Products of strided `f32` matrices on the CPU, for backends whose tensors are slices.

#![expect(
    unsafe_code,
    reason = "gemm takes pointers; every view is checked against its slice"
)]

mod few_rows;

use std::ops::Range;

use gemm::Parallelism;

use few_rows::FewRows;

/// A matrix in a slice.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    shape: [usize; 2],
    strides: [usize; 2],
}

/// A matrix in a mutable slice.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    data: &'a mut [f32],
    shape: [usize; 2],
    row_stride: usize,
}

fn assert_inside(length: usize, [rows, columns]: [usize; 2], [row, column]: [usize; 2]) {
    let last = (rows.max(1) - 1) * row + (columns.max(1) - 1) * column;
    assert!(
        rows * columns == 0 || last < length,
        "a matrix lies within its slice"
    );
}

impl<'a> Matrix<'a> {
    /// Rows of `columns` elements, `row_stride` elements apart.
    ///
    /// # Panics
    /// If they do not lie within `data`.
    pub fn new(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        let (shape, strides) = ([rows, columns], [row_stride, 1]);
        assert_inside(data.len(), shape, strides);
        Self {
            data,
            shape,
            strides,
        }
    }

    /// The transpose, without moving anything.
    pub fn transposed(self) -> Self {
        let ([rows, columns], [row, column]) = (self.shape, self.strides);
        Self {
            data: self.data,
            shape: [columns, rows],
            strides: [column, row],
        }
    }

    /// A row of a matrix that is not transposed.
    pub fn row(self, row: usize) -> &'a [f32] {
        &self.data[row * self.strides[0]..][..self.shape[1]]
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn rows(self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.shape[0], "rows of a matrix");
        let start = (rows.start * self.strides[0]).min(self.data.len());
        Self {
            data: &self.data[start..],
            shape: [rows.len(), self.shape[1]],
            strides: self.strides,
        }
    }

    fn columns(self, columns: Range<usize>) -> Self {
        self.transposed().rows(columns).transposed()
    }
}

impl<'a> MatrixMut<'a> {
    /// Rows of `columns` elements, `row_stride` elements apart.
    ///
    /// # Panics
    /// If they do not lie within `data`, or overlap.
    pub fn new(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert_inside(data.len(), [rows, columns], [row_stride, 1]);
        assert!(rows <= 1 || row_stride >= columns, "rows do not overlap");
        Self {
            data,
            shape: [rows, columns],
            row_stride,
        }
    }

    fn rows(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let [rows, columns] = self.shape;
        let rows = self.data.chunks_mut(self.row_stride).take(rows);
        rows.map(move |row| &mut row[..columns])
    }
}

/// How a product is written to its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The old contents are replaced.
    Replace,
    /// The product is added to the old contents.
    Add,
}

/// Most elements of a product's inner dimension that `gemm` (0.19) always sums one after another.
pub const DEPTH: usize = 512;
/// `gemm` sums along vectors in products of at most this many elements, if both operands have their inner dimension
/// contiguous.
const SMALL_PRODUCT: usize = 256;

/// Multiplications from which on a product is worth more than one thread.
const PARALLEL: usize = 1 << 18;

/// True if [`FewRows`] beats `gemm` at products of this shape (benches/reports/few_rows_2026-11.md).
fn are_few(rows: usize, columns: usize) -> bool {
    rows <= 16.max(columns / 4).min(256)
}

/// `out = [out +] scale · lhs · rhs` on the calling thread. The bits of an element depend only on its row of `lhs` and
/// its column of `rhs`, not on how many others there are.
///
/// # Panics
/// If the shapes do not fit.
pub fn multiply(out: MatrixMut<'_>, output: Output, scale: f32, lhs: Matrix<'_>, rhs: Matrix<'_>) {
    product(out, output, scale, lhs, rhs, Parallelism::None);
}

/// `out = lhs · rhs` on Rayon's threads, with the bits of [`multiply`].
///
/// # Panics
/// If the shapes do not fit.
pub fn multiply_parallel(out: MatrixMut<'_>, lhs: Matrix<'_>, rhs: Matrix<'_>) {
    let work = lhs.shape[0] * lhs.shape[1] * rhs.shape[1];
    let parallelism = if work < PARALLEL {
        Parallelism::None
    } else {
        Parallelism::Rayon(0)
    };
    product(out, Output::Replace, 1.0, lhs, rhs, parallelism);
}

fn product(
    mut out: MatrixMut<'_>,
    output: Output,
    scale: f32,
    lhs: Matrix<'_>,
    rhs: Matrix<'_>,
    parallelism: Parallelism,
) {
    let ([m, k], [k_rhs, n]) = (lhs.shape, rhs.shape);
    assert!(k == k_rhs && out.shape == [m, n], "shapes of a product fit");
    if m == 0 || n == 0 || (k == 0 && output == Output::Add) {
        return;
    }
    let mut start = 0;
    if are_few(m, n) && rhs.strides[0] == 1 && FewRows::is_supported() {
        // `gemm` sums one or two elements in another order: such a rest is left to it.
        start = if k % DEPTH <= 2 { k - k % DEPTH } else { k };
        if start > 0 {
            let (lhs, rhs) = (lhs.columns(0..start), rhs.rows(0..start));
            FewRows {
                out: &mut out,
                output,
                scale,
                lhs,
                rhs,
                is_parallel: matches!(parallelism, Parallelism::Rayon(_)),
            }
            .multiply();
        }
        if start == k && k > 0 {
            return;
        }
    }
    // `gemm` chooses where it cuts a longer sum by the shape of the output.
    for start in (start..k.max(1)).step_by(DEPTH) {
        let part = start..k.min(start + DEPTH);
        let (lhs, rhs) = (lhs.columns(part.clone()), rhs.rows(part));
        let output = if start == 0 { output } else { Output::Add };
        let along_vectors = lhs.strides[1] == 1 && rhs.strides[0] == 1 && m * n <= SMALL_PRODUCT;
        if m == 1 || n == 1 || along_vectors {
            multiply_small(&mut out, output, scale, lhs, rhs, parallelism);
        } else {
            multiply_in_order(&mut out, output, scale, lhs, rhs, parallelism);
        }
    }
}

/// A product that `gemm` would sum in another order: with copies that have at least two rows and columns, and columns
/// contiguous in `lhs`.
fn multiply_small(
    out: &mut MatrixMut<'_>,
    output: Output,
    scale: f32,
    lhs: Matrix<'_>,
    rhs: Matrix<'_>,
    parallelism: Parallelism,
) {
    let ([m, k], n) = (lhs.shape, rhs.shape[1]);
    let (rows, stride) = (m.max(2), n.max(2));
    let mut columns = vec![0f32; rows * k];
    for (depth, column) in columns.chunks_exact_mut(rows).enumerate() {
        for (row, value) in column[..m].iter_mut().enumerate() {
            *value = lhs.data[row * lhs.strides[0] + depth * lhs.strides[1]];
        }
    }
    let mut copy = vec![0f32; rows * stride];
    if output == Output::Add {
        for (copy, row) in copy.chunks_mut(stride).zip(out.data.chunks(out.row_stride)) {
            copy[..n].copy_from_slice(&row[..n]);
        }
    }
    let lhs = Matrix::new(&columns, k, rows, rows).transposed();
    let mut padded = MatrixMut::new(&mut copy, rows, n, stride);
    multiply_in_order(&mut padded, output, scale, lhs, rhs, parallelism);
    for (row, copy) in out
        .data
        .chunks_mut(out.row_stride)
        .zip(copy.chunks(stride))
        .take(m)
    {
        row[..n].copy_from_slice(&copy[..n]);
    }
}

fn multiply_in_order(
    out: &mut MatrixMut<'_>,
    output: Output,
    scale: f32,
    lhs: Matrix<'_>,
    rhs: Matrix<'_>,
    parallelism: Parallelism,
) {
    let ([m, k], n) = (lhs.shape, rhs.shape[1]);
    let stride = |stride: usize| stride as isize;
    // SAFETY: all three matrices were checked to lie within their slices with exactly these
    // shapes and strides, the output's rows do not overlap, and it is borrowed mutably.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.data.as_mut_ptr(),
            1,
            stride(out.row_stride),
            output == Output::Add,
            lhs.data.as_ptr(),
            stride(lhs.strides[1]),
            stride(lhs.strides[0]),
            rhs.data.as_ptr(),
            stride(rhs.strides[1]),
            stride(rhs.strides[0]),
            1.0,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "small integers are exact")]
mod tests {
    use super::*;

    #[test]
    fn product_of_strided_and_transposed_views() {
        // lhs is the left half of a 2 x 4 matrix, rhs the transpose of a 3 x 2 one.
        let lhs = [1.0, 2.0, 9.0, 9.0, 3.0, 4.0, 9.0, 9.0];
        let rhs = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
        let mut out = [10.0; 8];
        multiply(
            MatrixMut::new(&mut out, 2, 3, 4),
            Output::Add,
            2.0,
            Matrix::new(&lhs, 2, 2, 4),
            Matrix::new(&rhs, 3, 2, 2).transposed(),
        );
        assert_eq!(out, [12.0, 14.0, 16.0, 10.0, 16.0, 18.0, 24.0, 10.0]);
    }

    /// A row and column of every product are those of the largest one.
    #[test]
    fn an_element_does_not_depend_on_the_size_of_the_product() {
        let mut state = 1u32;
        let mut random = |count: usize| -> Vec<f32> {
            let draw = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            (0..count).map(draw).collect()
        };
        let (most, stride) = (80, 1300);
        for k in [1, 2, 3, 17, 64, 512, 513, 514, 1300] {
            // Both operands have their inner dimension contiguous, or only the first.
            for is_transposed in [true, false] {
                let (lhs, rhs, old) = (random(most * stride), random(stride * most), random(most));
                let product = |m: usize, n: usize, output: Output| {
                    let mut out = old[..n].repeat(m);
                    let rhs = if is_transposed {
                        Matrix::new(&rhs, n, k, stride).transposed()
                    } else {
                        Matrix::new(&rhs, k, n, most)
                    };
                    let lhs = Matrix::new(&lhs, m, k, stride);
                    multiply(MatrixMut::new(&mut out, m, n, n), output, 0.3, lhs, rhs);
                    out
                };
                for output in [Output::Replace, Output::Add] {
                    let whole = product(most, most, output);
                    for (m, n) in [
                        (1, 1),
                        (1, 2),
                        (2, 1),
                        (3, 5),
                        (1, 80),
                        (16, 16),
                        (17, 16),
                        (65, 3),
                        (80, 1),
                    ] {
                        let part = product(m, n, output);
                        for (row, part) in part.chunks(n).enumerate() {
                            let whole = &whole[row * most..][..n];
                            assert_eq!(part, whole, "{m} x {k} x {n}, {output:?}, {is_transposed}");
                        }
                    }
                }
                let rhs = Matrix::new(&rhs, most, k, stride).transposed();
                for m in [2, 16, 80] {
                    let lhs = Matrix::new(&lhs, m, k, stride);
                    let [mut alone, mut parallel] = [vec![0.0; m * most], vec![0.0; m * most]];
                    let out = MatrixMut::new(&mut alone, m, most, most);
                    multiply(out, Output::Replace, 1.0, lhs, rhs);
                    multiply_parallel(MatrixMut::new(&mut parallel, m, most, most), lhs, rhs);
                    assert_eq!(parallel, alone, "{m} x {k} x {most} on all threads");
                }
            }
        }
    }

    /// Small whole numbers, so that any order of sums is exact.
    #[test]
    fn sums_of_whole_numbers() {
        let value = |at: usize| (at * 7 % 5) as f32 - 2.0;
        for (m, k, n) in [
            (1, 0, 3),
            (40, 0, 200),
            (1, 33, 200),
            (40, 33, 200),
            (40, 1025, 200),
        ] {
            let (lhs, rhs): (Vec<_>, Vec<_>) = (
                (0..m * k).map(value).collect(),
                (3..n * k + 3).map(value).collect(),
            );
            let rhs_rows = Matrix::new(&rhs, n, k, k).transposed();
            for is_transposed in [false, true] {
                let lhs_rows = if is_transposed {
                    Matrix::new(&lhs, k, m, m).transposed()
                } else {
                    Matrix::new(&lhs, m, k, k)
                };
                for output in [Output::Replace, Output::Add] {
                    let mut out: Vec<f32> = (0..m * n).map(value).collect();
                    let old = out.clone();
                    multiply(
                        MatrixMut::new(&mut out, m, n, n),
                        output,
                        2.0,
                        lhs_rows,
                        rhs_rows,
                    );
                    for (at, found) in out.into_iter().enumerate() {
                        let (row, column) = (at / n, at % n);
                        let of_lhs = |depth| {
                            lhs[if is_transposed {
                                depth * m + row
                            } else {
                                row * k + depth
                            }]
                        };
                        let products = (0..k).map(|depth| of_lhs(depth) * rhs[column * k + depth]);
                        let before = if output == Output::Add { old[at] } else { 0.0 };
                        let expected = before + 2.0 * products.sum::<f32>();
                        assert_eq!(
                            found, expected,
                            "{m} x {k} x {n}, {output:?}, {is_transposed}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "within its slice")]
    fn a_view_beyond_its_slice_is_refused() {
        Matrix::new(&[0.0; 5], 2, 3, 3);
    }
}
