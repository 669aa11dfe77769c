use nalgebra::{DMatrix, DVector};
use proptest::prelude::*;

use super::{identified, nnls};

/// The slow reference: ordinary least squares over every subset of the columns by the singular value
/// decomposition; of those without a negative value, the nearest.
fn by_all_subsets(a: &DMatrix<f64>, y: &DVector<f64>) -> (DVector<f64>, f64) {
    let unknowns = a.ncols();
    let mut best = (DVector::zeros(unknowns), y.norm());
    for subset in 1_usize..1 << unknowns {
        let columns: Vec<usize> = (0..unknowns).filter(|j| subset >> j & 1 == 1).collect();
        let part = a.select_columns(&columns);
        let values = part.clone().svd(true, true).solve(y, 1e-13).unwrap();
        let distance = (&part * &values - y).norm();
        if values.iter().all(|value| *value >= 0.0) && distance < best.1 {
            let mut x = DVector::zeros(unknowns);
            for (&column, value) in columns.iter().zip(&values) {
                x[column] = *value;
            }
            best = (x, distance);
        }
    }
    best
}

/// Rows of (1, ΣBL, ΣBL²) in units of their largest.
fn loads(rows: std::ops::Range<usize>) -> impl Strategy<Value = DMatrix<f64>> {
    let load = (1_u32..33, 16_u32..2048).prop_map(|(rows, length)| {
        let (rows, length) = (f64::from(rows), f64::from(length));
        [
            1.0,
            rows * length / 65_536.0,
            rows * length * length / 134e6,
        ]
    });
    prop::collection::vec(load, rows)
        .prop_map(|rows| DMatrix::from_row_iterator(rows.len(), 3, rows.into_iter().flatten()))
}

fn any_matrix() -> impl Strategy<Value = (DMatrix<f64>, DVector<f64>)> {
    (1_usize..12, 1_usize..8).prop_flat_map(|(rows, columns)| {
        let numbers = prop::collection::vec(-10.0..10.0_f64, rows * columns);
        let right = prop::collection::vec(-10.0..10.0_f64, rows);
        (numbers, right)
            .prop_map(move |(a, y)| (DMatrix::from_vec(rows, columns, a), DVector::from_vec(y)))
    })
}

/// The conditions of Karush, Kuhn and Tucker, which hold at the minimum and nowhere else.
fn is_smallest(a: &DMatrix<f64>, y: &DVector<f64>, x: &DVector<f64>) -> bool {
    let descent = a.tr_mul(&(y - a * x));
    (0..x.len()).all(|j| {
        let tolerance = 1e-9 * a.column(j).norm() * y.norm();
        let stationary = x[j] == 0.0 || descent[j].abs() <= tolerance;
        x[j] >= 0.0 && descent[j] <= tolerance && stationary
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000.max(ProptestConfig::default().cases)))]

    #[test]
    fn it_is_the_best_of_all_subsets(
        a in loads(3..30), b in prop::array::uniform3(-2.0..8.0_f64), noise in 0.0..0.5_f64,
        errors in prop::collection::vec(-1.0..1.0_f64, 30),
    ) {
        let errors = DVector::from_iterator(a.nrows(), errors.into_iter().take(a.nrows()));
        let y = &a * DVector::from_row_slice(&b) + errors * noise;
        let found = nnls(&a, &y).unwrap();
        let (expected, distance) = by_all_subsets(&a, &y);
        prop_assert!(found.iter().all(|value| *value >= 0.0));
        prop_assert!(is_smallest(&a, &y, &found), "{found}");
        let apart = ((&a * &found - &y).norm() - distance).abs();
        prop_assert!(apart <= 1e-10 * y.norm(), "{apart} {found} {expected}");
        // Far enough from dependent columns the values are the same, too.
        let singular = a.clone().svd(false, false).singular_values;
        if a.nrows() >= 3 && singular.min() > 1e-3 * singular.max() {
            let apart = (&found - &expected).amax();
            prop_assert!(apart <= 1e-8 * (1.0 + expected.amax()), "{found} {expected}");
        }
    }

    #[test]
    fn any_problem_ends_at_its_minimum((a, y) in any_matrix()) {
        let found = nnls(&a, &y).unwrap();
        prop_assert!(is_smallest(&a, &y, &found), "{found}");
        let (_, distance) = by_all_subsets(&a, &y);
        prop_assert!(((&a * &found - &y).norm() - distance).abs() <= 1e-9 * y.norm());
    }

    #[test]
    fn columns_may_differ_in_size_and_be_copies(
        (a, y) in any_matrix(), exponents in prop::array::uniform7(-100_i32..100),
    ) {
        let mut scaled = a.clone();
        for (mut column, exponent) in scaled.column_iter_mut().zip(exponents) {
            column *= 2_f64.powi(exponent);
        }
        let (plain, found) = (nnls(&a, &y).unwrap(), nnls(&scaled, &y).unwrap());
        for j in 0..a.ncols() {
            let back = found[j] * 2_f64.powi(exponents[j]);
            prop_assert!((back - plain[j]).abs() <= 1e-6 * (1.0 + plain.amax()));
        }
        let columns: Vec<usize> = (0..a.ncols()).chain(0..a.ncols()).collect();
        let doubled = a.select_columns(&columns);
        let found = nnls(&doubled, &y).unwrap();
        prop_assert!(is_smallest(&doubled, &y, &found), "{found}");
    }
}

#[test]
fn a_negative_coefficient_becomes_zero_and_the_others_take_its_part() {
    let a = DMatrix::from_row_slice(3, 2, &[1.0, 0.0, 1.0, 1.0, 1.0, 2.0]);
    let falling = DVector::from_column_slice(&[3.0, 2.0, 1.0]);
    let x = nnls(&a, &falling).unwrap();
    assert!((x[0] - 2.0).abs() < 1e-12 && x[1] == 0.0, "{x}");
    let rising = DVector::from_column_slice(&[1.0, 3.0, 5.0]);
    let x = nnls(&a, &rising).unwrap();
    assert!(
        (x[0] - 1.0).abs() < 1e-12 && (x[1] - 2.0).abs() < 1e-12,
        "{x}"
    );
    assert_eq!(nnls(&a, &DVector::zeros(3)), Some(DVector::zeros(2)));
}

#[test]
fn what_is_no_problem_has_no_solution() {
    let two = DMatrix::from_element(2, 3, 1.0);
    assert_eq!(nnls(&two, &DVector::zeros(3)), None);
    assert_eq!(nnls(&two, &DVector::from_element(2, f64::NAN)), None);
    let infinite = DMatrix::from_element(2, 3, f64::INFINITY);
    assert_eq!(nnls(&infinite, &DVector::zeros(2)), None);
    let zeros = DVector::zeros(3);
    assert_eq!(
        nnls(&DMatrix::zeros(0, 3), &DVector::zeros(0)),
        Some(zeros.clone())
    );
    let right = DVector::from_element(2, 5.0);
    assert_eq!(nnls(&DMatrix::zeros(2, 3), &right), Some(zeros.clone()));
    assert_eq!(nnls(&two, &-right), Some(zeros));
}

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
