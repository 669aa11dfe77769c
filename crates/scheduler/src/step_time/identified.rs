use nalgebra::{DMatrix, DVector};

/// Part of a column that the columns before it must leave unexplained: below it, noise of a few per
/// cent in the seconds would decide how cost is divided between them.
const INDEPENDENT: f64 = 0.05;

/// Which of the columns can be told apart: walks through them in `order` and keeps those that are
/// not, but for a small rest, sums of those kept before. Columns are of norm 1 or 0.
pub(crate) fn identified(a: &DMatrix<f64>, order: &[usize]) -> Vec<usize> {
    let mut basis: Vec<DVector<f64>> = Vec::new();
    let mut kept = Vec::new();
    for &column in order {
        let mut rest = a.column(column).into_owned();
        for direction in &basis {
            rest -= direction * direction.dot(&rest);
        }
        let norm = rest.norm();
        if norm > INDEPENDENT {
            basis.push(rest / norm);
            kept.push(column);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use nalgebra::DMatrix;

    use super::identified;

    #[test]
    fn copies_sums_and_zeros_are_left_out_and_order_decides_which() {
        let columns = [
            [0.6, 0.8, 0.0],
            [0.0, 0.0, 1.0],
            [0.6, 0.8, 0.0],
            [0.36, 0.48, 0.8],
            [0.0; 3],
            [0.8, -0.6, 0.0],
        ];
        let a = DMatrix::from_fn(3, 6, |row, column| columns[column][row]);
        assert_eq!(identified(&a, &[0, 1, 2, 3, 4, 5]), [0, 1, 5]);
        assert_eq!(identified(&a, &[4, 3, 2, 1, 0]), [3, 2]);
    }
}
