use nalgebra::{DMatrix, DVector};

/// The x ≥ 0 that makes ‖A·x − b‖ smallest, by Lawson and Hanson's active sets ("Solving Least
/// Squares Problems", 1974, chapter 23). Columns of A should be of about the same norm.
///
/// Columns that depend on others may stay at 0 although they could share what those explain.
pub(super) fn non_negative_least_squares(a: &DMatrix<f64>, b: &DVector<f64>) -> DVector<f64> {
    let columns = a.ncols();
    let mut x = DVector::zeros(columns);
    let mut passive = vec![false; columns];
    let tolerance = 1e-12 * a.norm() * b.norm();
    // Each round adds a column and lowers the residual, so no set of columns comes twice; the bound
    // only stops rounding errors from going in circles.
    for _ in 0..10 * columns {
        let gradient = a.tr_mul(&(b - a * &x));
        let candidates = (0..columns).filter(|&j| !passive[j] && gradient[j] > tolerance);
        let Some(entering) = candidates.max_by(|&i, &j| gradient[i].total_cmp(&gradient[j])) else {
            break;
        };
        passive[entering] = true;
        loop {
            let z = unconstrained(a, b, &passive);
            // The step towards z that ends where the first coefficient becomes 0.
            let step = (0..columns)
                .filter(|&j| passive[j] && z[j] <= 0.0)
                .map(|j| way_to_zero(x[j], z[j]))
                .min_by(f64::total_cmp);
            let Some(step) = step else {
                x = z;
                break;
            };
            for j in (0..columns).filter(|&j| passive[j]) {
                let blocks = z[j] <= 0.0 && way_to_zero(x[j], z[j]) <= step;
                x[j] += step * (z[j] - x[j]);
                if blocks || x[j] <= 0.0 {
                    x[j] = 0.0;
                }
            }
            for j in 0..columns {
                passive[j] &= x[j] > 0.0;
            }
        }
    }
    x
}

/// Which part of the way from x ≥ 0 to z ≤ 0 ends at 0.
fn way_to_zero(x: f64, z: f64) -> f64 {
    if x > 0.0 { x / (x - z) } else { 0.0 }
}

/// The least squares solution over the passive columns; the others are 0.
fn unconstrained(a: &DMatrix<f64>, b: &DVector<f64>, passive: &[bool]) -> DVector<f64> {
    let chosen: Vec<usize> = (0..a.ncols()).filter(|&j| passive[j]).collect();
    let mut z = DVector::zeros(a.ncols());
    if chosen.is_empty() {
        return z;
    }
    let svd = a.select_columns(&chosen).svd(true, true);
    let smallest = 1e-12 * svd.singular_values.max();
    if let Ok(solution) = svd.solve(b, smallest) {
        for (&j, &value) in chosen.iter().zip(solution.iter()) {
            z[j] = value;
        }
    }
    z
}

#[cfg(test)]
mod tests {
    use nalgebra::{DMatrix, DVector};
    use proptest::{collection::vec, prelude::*};

    use super::{non_negative_least_squares, unconstrained};

    fn squared_error(a: &DMatrix<f64>, b: &DVector<f64>, x: &DVector<f64>) -> f64 {
        (a * x - b).norm_squared()
    }

    /// The slow reference: the best of the unconstrained solutions of all subsets of columns that
    /// have no negative coefficient.
    fn by_all_subsets(a: &DMatrix<f64>, b: &DVector<f64>) -> f64 {
        let subsets = 0..1_u32 << a.ncols();
        let feasible = subsets.filter_map(|bits| {
            let passive: Vec<bool> = (0..a.ncols()).map(|j| bits >> j & 1 == 1).collect();
            let x = unconstrained(a, b, &passive);
            x.iter().all(|&x| x >= 0.0).then(|| squared_error(a, b, &x))
        });
        feasible.fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn a_negative_coefficient_becomes_zero_and_the_others_take_its_part() {
        let a = DMatrix::from_row_slice(3, 2, &[1.0, 0.0, 1.0, 1.0, 1.0, 2.0]);
        let falling = DVector::from_column_slice(&[3.0, 2.0, 1.0]);
        let x = non_negative_least_squares(&a, &falling);
        assert!((x[0] - 2.0).abs() < 1e-12 && x[1] == 0.0, "{x}");
        let rising = DVector::from_column_slice(&[1.0, 3.0, 5.0]);
        let x = non_negative_least_squares(&a, &rising);
        assert!(
            (x[0] - 1.0).abs() < 1e-12 && (x[1] - 2.0).abs() < 1e-12,
            "{x}"
        );
        let nothing = non_negative_least_squares(&a, &DVector::zeros(3));
        assert_eq!(nothing, DVector::zeros(2));
    }

    proptest! {
        #[test]
        fn no_feasible_subset_of_columns_is_better(
            entries in vec(-2.0..2.0_f64, 7 * 4), target in vec(-2.0..2.0_f64, 7),
            twins in any::<bool>(),
        ) {
            let mut a = DMatrix::from_row_slice(7, 4, &entries);
            if twins {
                let first = a.column(0).into_owned();
                a.set_column(3, &first);
            }
            let b = DVector::from_column_slice(&target);
            let x = non_negative_least_squares(&a, &b);
            prop_assert!(x.iter().all(|&x| x >= 0.0));
            let (found, best) = (squared_error(&a, &b, &x), by_all_subsets(&a, &b));
            prop_assert!(found <= best + 1e-9, "{} {}", found, best);
        }
    }
}
