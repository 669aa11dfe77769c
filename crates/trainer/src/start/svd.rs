//! Singular value decompositions of a few components, in double precision on the CPU.

use burn::tensor::{DType, Device, Tensor, TensorData};

/// Part of its own length that a row keeps if it depends on the rows before it, up to rounding.
const DEPENDENT: f64 = 1e-13;

/// Cosine up to which two rows are orthogonal.
const ORTHOGONAL: f64 = 1e-15;

/// More sweeps than the rotations need.
const SWEEPS: usize = 40;

/// A matrix in the memory of this process, row after row.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Matrix {
    pub(super) columns: usize,
    pub(super) values: Vec<f64>,
}

/// `matrix ≈ leftᵀ · diag(values) · right`, with the largest values first.
#[derive(Debug)]
pub(super) struct Svd {
    pub(super) left: Matrix,
    pub(super) values: Vec<f64>,
    pub(super) right: Matrix,
}

impl Matrix {
    pub(super) fn rows(&self) -> impl DoubleEndedIterator<Item = &[f64]> + ExactSizeIterator {
        self.values.chunks_exact(self.columns.max(1))
    }

    pub(super) fn rows_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [f64]> {
        self.values.chunks_exact_mut(self.columns.max(1))
    }

    /// Multiplies each row by a number.
    pub(super) fn scale_rows(&mut self, by: &[f64]) {
        for (row, by) in self.rows_mut().zip(by) {
            for value in row {
                *value *= by;
            }
        }
    }

    pub(super) fn height(&self) -> usize {
        self.rows().len()
    }

    pub(super) fn tensor(&self) -> Tensor<2> {
        let data = TensorData::new(self.values.clone(), [self.height(), self.columns]);
        Tensor::from_data(data, (&Device::flex().without_autodiff(), DType::F64))
    }

    /// Its product with a tensor on the CPU.
    pub(super) fn times(&self, other: &Tensor<2>) -> Self {
        let product = self.tensor().matmul(other.clone());
        Self {
            columns: other.dims()[1],
            values: product.into_data().iter::<f64>().collect(),
        }
    }

    fn transposed(&self) -> Self {
        let height = self.height();
        let column = |column: usize| self.rows().map(move |row| row[column]);
        Self {
            columns: height,
            values: (0..self.columns).flat_map(column).collect(),
        }
    }
}

/// As torch's `svd_lowrank`: subspace iteration from `random(count)`, which gives the numbers of a matrix of the
/// smaller dimension by `most` (Halko et al., 2009, algorithm 5.1). At most `most` components; exact if `most` is the
/// smaller dimension.
pub(super) fn svd_lowrank(
    matrix: &Matrix,
    most: usize,
    iterations: usize,
    random: impl FnOnce(usize) -> Vec<f64>,
) -> Svd {
    let wide = matrix.height() < matrix.columns;
    let (tall, across) = (matrix.tensor(), matrix.tensor().transpose());
    let (tall, across) = if wide { (across, tall) } else { (tall, across) };
    let width = tall.dims()[1];
    let begin = Matrix {
        columns: most,
        values: random(width * most),
    };
    let mut basis = orthonormal(begin.transposed().times(&across));
    for _ in 0..iterations {
        let other = orthonormal(basis.times(&tall));
        basis = orthonormal(other.times(&across));
    }
    let small = basis.times(&tall);
    let rows = orthonormal(small.clone());
    let (rotation, values, within) = rotated(small.times(&rows.tensor().transpose()));
    let left = rotation.times(&basis.tensor());
    let right = within.times(&rows.tensor());
    let (left, right) = if wide { (right, left) } else { (left, right) };
    Svd {
        left,
        values,
        right,
    }
}

/// Orthonormal rows with the span of these, by the Gram-Schmidt process, twice each. A row that depends on those
/// before it is left out.
pub(super) fn orthonormal(mut matrix: Matrix) -> Matrix {
    let mut kept = Matrix {
        columns: matrix.columns,
        values: Vec::with_capacity(matrix.values.len()),
    };
    for row in matrix.rows_mut() {
        let before = dot(row, row).sqrt();
        for _ in 0..2 {
            for earlier in kept.rows() {
                let along = dot(row, earlier);
                let pairs = row.iter_mut().zip(earlier);
                pairs.for_each(|(value, other)| *value -= along * other);
            }
        }
        let length = dot(row, row).sqrt();
        if length > DEPENDENT * before {
            kept.values.extend(row.iter().map(|value| value / length));
        }
    }
    kept
}

/// One-sided Jacobi rotations: for a small matrix, rotations U, values s and V with `Uᵀ · diag(s) · V` as the matrix.
fn rotated(mut matrix: Matrix) -> (Matrix, Vec<f64>, Matrix) {
    let (height, width) = (matrix.height(), matrix.columns);
    let mut rotation = Matrix {
        columns: height,
        values: vec![0.0; height * height],
    };
    let diagonal = rotation.values.iter_mut().step_by(height + 1);
    diagonal.for_each(|value| *value = 1.0);
    for _ in 0..SWEEPS {
        let mut done = true;
        for second in 1..height {
            for first in 0..second {
                let [a, b] = pair(&mut matrix.values, [first, second], width);
                let (of_a, of_b, both) = (dot(a, a), dot(b, b), dot(a, b));
                if both.abs() <= ORTHOGONAL * (of_a * of_b).sqrt() {
                    continue;
                }
                done = false;
                let half = (of_b - of_a) / (2.0 * both);
                let tangent = 1f64.copysign(half) / (half.abs() + half.hypot(1.0));
                let cosine = 1.0 / tangent.hypot(1.0);
                let sine = cosine * tangent;
                turn([a, b], cosine, sine);
                let rows = pair(&mut rotation.values, [first, second], height);
                turn(rows, cosine, sine);
            }
        }
        if done {
            break;
        }
    }
    let lengths: Vec<f64> = matrix.rows().map(|row| dot(row, row).sqrt()).collect();
    let mut order: Vec<usize> = (0..height).collect();
    order.sort_by(|&a, &b| lengths[b].total_cmp(&lengths[a]));
    let sorted = |matrix: &Matrix, divide: bool| {
        let row = |&at: &usize| {
            let by = if divide && lengths[at] > 0.0 {
                lengths[at]
            } else {
                1.0
            };
            let row = &matrix.values[at * matrix.columns..][..matrix.columns];
            row.iter().map(move |value| value / by)
        };
        Matrix {
            columns: matrix.columns,
            values: order.iter().flat_map(row).collect(),
        }
    };
    let (rotation, within) = (sorted(&rotation, false), sorted(&matrix, true));
    (
        rotation,
        order.iter().map(|&at| lengths[at]).collect(),
        within,
    )
}

fn pair(values: &mut [f64], [first, second]: [usize; 2], width: usize) -> [&mut [f64]; 2] {
    let (before, after) = values.split_at_mut(second * width);
    [&mut before[first * width..][..width], &mut after[..width]]
}

fn turn([a, b]: [&mut [f64]; 2], cosine: f64, sine: f64) {
    for (a, b) in a.iter_mut().zip(b) {
        (*a, *b) = (cosine * *a - sine * *b, sine * *a + cosine * *b);
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Partial sums side by side, so that the compiler can use vector registers.
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest = rest_a.iter().zip(rest_b).map(|(a, b)| a * b);
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::{super::random::normal, Matrix, dot, svd_lowrank};

    /// A matrix with these singular values.
    fn with_values(height: usize, columns: usize, singular: &[f64]) -> Matrix {
        let of = |seed, columns: usize| {
            super::orthonormal(Matrix {
                columns,
                values: normal(seed, singular.len() * columns, false),
            })
        };
        let (mut left, right) = (of(1, height), of(2, columns));
        left.scale_rows(singular);
        left.transposed().times(&right.tensor())
    }

    #[test]
    fn a_decomposition_has_the_values_and_makes_the_matrix() {
        let singular = [9.0, 4.0, 1.0, 0.5, 1e-3];
        for (height, columns) in [(30, 12), (12, 30), (5, 40)] {
            let matrix = with_values(height, columns, &singular);
            for most in [5, 12] {
                let svd = svd_lowrank(&matrix, most, 4, |count| normal(3, count, false));
                for (found, expected) in svd.values.iter().zip(singular) {
                    assert!((found - expected).abs() < 1e-12, "{:?}", svd.values);
                }
                assert!(
                    svd.values[5.min(svd.values.len() - 1)..]
                        .iter()
                        .all(|&s| s < 1e-2)
                );
                let mut left = svd.left.clone();
                left.scale_rows(&svd.values);
                let again = left.transposed().times(&svd.right.tensor());
                let pairs = again.values.iter().zip(&matrix.values);
                assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-12));
                let rows: Vec<&[f64]> = svd.right.rows().take(5).collect();
                for (at, row) in rows.iter().enumerate() {
                    for (other, second) in rows.iter().enumerate() {
                        let expected = f64::from(u8::from(at == other));
                        assert!((dot(row, second) - expected).abs() < 1e-12);
                    }
                }
            }
        }
    }

    /// With fewer components than the matrix has, iterations find the first ones.
    #[test]
    fn iterations_find_the_first_components() {
        let singular: Vec<f64> = (0..20).map(|at| 0.5f64.powi(at)).collect();
        let matrix = with_values(50, 40, &singular);
        let svd = svd_lowrank(&matrix, 6, 4, |count| normal(3, count, false));
        for (found, expected) in svd.values.iter().zip(&singular).take(3) {
            assert!((found / expected - 1.0).abs() < 1e-9, "{:?}", svd.values);
        }
        assert_eq!((svd.left.columns, svd.right.columns), (50, 40));
    }
}
