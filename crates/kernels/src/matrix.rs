//! Products of strided `f32` matrices on the CPU, for backends whose tensors are slices.

#![expect(
    unsafe_code,
    reason = "gemm takes pointers; every view is checked against its slice"
)]

use gemm::Parallelism;

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
}

/// How a product is written to its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The old contents are replaced.
    Replace,
    /// The product is added to the old contents.
    Add,
}

/// `out = [out +] scale · lhs · rhs` on the calling thread.
///
/// # Panics
/// If the shapes do not fit.
pub fn multiply(out: MatrixMut<'_>, output: Output, scale: f32, lhs: Matrix<'_>, rhs: Matrix<'_>) {
    let ([m, k], [k_rhs, n]) = (lhs.shape, rhs.shape);
    assert!(k == k_rhs && out.shape == [m, n], "shapes of a product fit");
    if m == 0 || n == 0 || (k == 0 && output == Output::Add) {
        return;
    }
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
            Parallelism::None,
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

    #[test]
    #[should_panic(expected = "within its slice")]
    fn a_view_beyond_its_slice_is_refused() {
        Matrix::new(&[0.0; 5], 2, 3, 3);
    }
}
