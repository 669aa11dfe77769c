//! Non-negative least squares, and the unknowns that measurements can tell apart.

use nalgebra::{DMatrix, DVector};

/// Part of a column that the columns before it must leave unexplained: below it, noise of a few per
/// cent in the seconds would decide how cost is divided between them.
const INDEPENDENT: f64 = 0.05;
/// A column adds nothing to those before it if what is left of its unit length is below this.
const DEPENDENT: f64 = 1e-10;

/// The x ≥ 0 that makes ‖A·x − y‖₂ smallest: non-negative least squares by active sets (Lawson and
/// Hanson, Solving Least Squares Problems, 1974, chapter 23).
///
/// `a` is `[rows, unknowns]`, `y` is `[rows]`. Columns are scaled to unit length first, so unknowns may
/// differ in size by any factor. Where the smallest x is not unique, columns that depend on
/// others have 0. `None` if the shapes do not fit or a number is not finite.
pub fn nnls(a: &DMatrix<f64>, y: &DVector<f64>) -> Option<DVector<f64>> {
    let finite = a.iter().chain(y).all(|value| value.is_finite());
    if a.nrows() != y.len() || !finite {
        return None;
    }
    // Norms without overflow.
    let norms: Vec<f64> = a.column_iter().map(|c| norm(c.iter())).collect();
    let height = norm(y.iter());
    if !norms.iter().chain([&height]).all(|norm| norm.is_finite()) {
        return None;
    }
    let mut a = a.clone();
    for (mut column, norm) in a.column_iter_mut().zip(&norms) {
        column.unscale_mut(if *norm > 0.0 { *norm } else { 1.0 });
    }
    let y = y.unscale(if height > 0.0 { height } else { 1.0 });
    let mut x = solve_scaled(&a, &y);
    for (value, norm) in x.iter_mut().zip(&norms) {
        *value = if *norm > 0.0 {
            *value * height / norm
        } else {
            0.0
        };
    }
    x.iter().all(|value| value.is_finite()).then_some(x)
}

fn norm<'a>(values: impl Iterator<Item = &'a f64> + Clone) -> f64 {
    let largest = values
        .clone()
        .fold(0.0_f64, |most, value| most.max(value.abs()));
    if largest == 0.0 {
        return 0.0;
    }
    let squares = values.map(|value| (value / largest).powi(2)).sum::<f64>();
    largest * squares.sqrt()
}

/// For columns and a right-hand side of length 1 or 0.
fn solve_scaled(a: &DMatrix<f64>, y: &DVector<f64>) -> DVector<f64> {
    let unknowns = a.ncols();
    let tolerance = 64.0 * f64::EPSILON;
    let mut x = DVector::zeros(unknowns);
    let mut positive = vec![false; unknowns];
    // Columns that depend on the positive ones, or would leave them only to come out negative.
    let mut barred = vec![false; unknowns];
    // Each round lowers the distance, so no set comes twice; rounding might disagree.
    for _ in 0..64 * (unknowns + 1) {
        let descent = a.tr_mul(&(y - a * &x));
        let steepest = (0..unknowns)
            .filter(|&j| !positive[j] && !barred[j] && descent[j] > tolerance)
            .max_by(|&i, &j| descent[i].total_cmp(&descent[j]));
        let Some(entering) = steepest else { break };
        positive[entering] = true;
        let mut candidate = match least_squares(a, y, &positive) {
            Some(candidate) if candidate[entering] > 0.0 => candidate,
            _ => {
                positive[entering] = false;
                barred[entering] = true;
                continue;
            }
        };
        // Go as far towards the candidate as nothing turns negative; what turns zero stays zero.
        while let Some(step) = feasible_step(&x, &candidate, &positive) {
            x += (&candidate - &x) * step;
            for j in 0..unknowns {
                if positive[j] && candidate[j] <= 0.0 && x[j] <= tolerance {
                    positive[j] = false;
                    x[j] = 0.0;
                }
            }
            match least_squares(a, y, &positive) {
                Some(next) => candidate = next,
                None => return x,
            }
        }
        x = candidate;
        barred.fill(false);
    }
    x
}

/// The part of the way to the candidate at which the first unknown turns zero; `None` if none does.
fn feasible_step(x: &DVector<f64>, candidate: &DVector<f64>, positive: &[bool]) -> Option<f64> {
    let steps = (0..x.len())
        .filter(|&j| positive[j] && candidate[j] <= 0.0)
        .map(|j| x[j] / (x[j] - candidate[j]));
    // 0 of 0: it is already zero.
    steps
        .map(|step| {
            if step.is_finite() {
                step.clamp(0.0, 1.0)
            } else {
                0.0
            }
        })
        .min_by(f64::total_cmp)
}

/// Least squares over the chosen columns, 0 for the others, by Householder's QR; `None` if the
/// columns depend on each other.
fn least_squares(a: &DMatrix<f64>, y: &DVector<f64>, chosen: &[bool]) -> Option<DVector<f64>> {
    let columns: Vec<usize> = (0..chosen.len()).filter(|&j| chosen[j]).collect();
    let count = columns.len();
    let mut solution = DVector::zeros(chosen.len());
    if count == 0 {
        return Some(solution);
    }
    if a.nrows() < count {
        return None;
    }
    let factored = a.select_columns(&columns).qr();
    let triangle = factored.r();
    if (0..count).any(|j| triangle[(j, j)].abs() < DEPENDENT) {
        return None;
    }
    let mut turned = y.clone();
    factored.q_tr_mul(&mut turned);
    let values = triangle.solve_upper_triangular(&turned.rows(0, count))?;
    for (&column, value) in columns.iter().zip(&values) {
        solution[column] = *value;
    }
    Some(solution)
}

/// The columns that can be told apart: in `order`, each that is not, but for a small rest, a linear
/// combination of those before it. Columns have norm 1 or 0.
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
mod tests;
