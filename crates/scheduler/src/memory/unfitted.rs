use super::{coefficients::Coefficients, estimate::Basis, proportion, runs::Runs, window::Row};
use crate::Load;

/// What the prior's bound adds to the prior before anything is measured.
const PRIOR_MARGIN: f64 = 0.25;

/// How differently the prior may be off in its coefficients: the most by this factor more than the
/// least.
const PRIOR_SKEW: f64 = 10.0;

/// What a bound scaled from one measurement adds to it, as b is not all that loads differ in.
const SINGLE_MARGIN: f64 = 0.05;

/// How far measurements may err while nothing is known of their errors, relative to all bytes.
const SINGLE_ERROR: f64 = 0.01;

/// What is predicted beside the exact bytes before there is a fit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unfitted {
    pub(super) expected: f64,
    pub(super) bound: f64,
    pub(super) basis: Basis,
}

/// The prior, in proportion to what was measured. Its bound is that of the one measurement that says
/// most, so it does not depend on how far the prior is off as a whole.
pub(super) fn predict(
    prior: Coefficients,
    rows: &[Row],
    runs: &Runs,
    load: Load,
    exact_bytes: u64,
) -> Unfitted {
    let by_prior = prior.bytes(load);
    let of_rows: f64 = rows.iter().map(|row| prior.bytes(row.load)).sum();
    let measured: f64 = rows.iter().map(|row| row.bytes.max(0.0)).sum();
    let expected = match measured / of_rows {
        ratio if ratio.is_finite() => by_prior * ratio,
        _ => by_prior,
    };
    let times = |known| proportion::at_most_like(prior, PRIOR_SKEW, load, known);
    let scaled = rows
        .iter()
        .map(|row| row.bytes.max(0.0) * times(row.load))
        .filter(|bytes| bytes.is_finite())
        .chain(runs.scaled_bytes(times))
        .min_by(f64::total_cmp)
        .map(|bytes| bytes * (1.0 + SINGLE_MARGIN));
    let above_prior = by_prior.max(expected) * (1.0 + PRIOR_MARGIN);
    let (bound, basis) = match scaled {
        // What pools held before anything made them grow may be far more than anything needs.
        Some(scaled) if !rows.is_empty() || scaled < above_prior => (scaled, Basis::Proportion),
        _ => (above_prior, Basis::Prior),
    };
    let error = SINGLE_ERROR * (exact_bytes as f64 + bound);
    Unfitted {
        expected,
        bound: bound + error,
        basis,
    }
}
