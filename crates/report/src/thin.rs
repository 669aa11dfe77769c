//! Thins curves for a page.

use std::ops::Range;

/// Indices of at most `most` of `length` rows, ascending: the first and the last, and of every stretch between
/// them the rows with the lowest and the highest value of each column, so that no peak is lost.
pub(crate) fn kept(length: usize, most: usize, columns: &[&dyn Fn(usize) -> f64]) -> Vec<usize> {
    if length <= most {
        return (0..length).collect();
    }
    let stretches = (most.saturating_sub(2) / (2 * columns.len()).max(1)).max(1);
    let mut kept = vec![0, length - 1];
    for stretch in 0..stretches {
        let rows = stretch * length / stretches..(stretch + 1) * length / stretches;
        for column in columns {
            kept.extend(extremes(rows.clone(), column));
        }
    }
    kept.sort_unstable();
    kept.dedup();
    kept
}

/// The rows with the lowest and the highest number, if there are any.
fn extremes(rows: Range<usize>, column: &dyn Fn(usize) -> f64) -> impl Iterator<Item = usize> {
    let numbers = || rows.clone().filter(|&row| column(row).is_finite());
    let order = |one: &usize, other: &usize| column(*one).total_cmp(&column(*other));
    let found = [numbers().min_by(order), numbers().max_by(order)];
    found.into_iter().flatten()
}

/// Least number of rows for smoothing.
const FEWEST: usize = 40;

/// The mean of the rows around each, [`span`] of them in all and fewer at the ends; `None` if there are too few.
/// Values that are not finite are skipped.
pub(crate) fn smoothed(values: &[f64]) -> Option<Vec<f64>> {
    let reach = span(values.len())? / 2;
    let mut sums = vec![(0.0, 0.0)];
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        if value.is_finite() {
            (sum, count) = (sum + value, count + 1.0);
        }
        sums.push((sum, count));
    }
    let mean = |at: usize| {
        let (before, after) = (reach.min(at), reach.min(values.len() - 1 - at));
        // Losses fall steeply at first and hardly at the end, where more earlier steps may count.
        let (before, after) = (before, after.min(before + reach / 8));
        let ((before, skipped), (sum, count)) = (sums[at - before], sums[at + after + 1]);
        (sum - before) / (count - skipped)
    };
    Some((0..values.len()).map(mean).collect())
}

/// Window of a smoothed value: 4 % of all rows, an odd number; `None` if there are too few.
pub(crate) fn span(length: usize) -> Option<usize> {
    (length >= FEWEST).then(|| (length / 50).max(1) * 2 + 1)
}

#[cfg(test)]
mod tests {
    use super::{kept, smoothed};

    #[test]
    fn peaks_and_ends_are_kept() {
        let mut values = vec![1.0; 10_000];
        for (at, value) in [(1, 9.0), (4567, -3.0), (4568, 8.0), (9998, f64::NAN)] {
            values[at] = value;
        }
        let other: Vec<f64> = (0..10_000).map(|at| f64::from(at == 7777)).collect();
        let rows = kept(10_000, 600, &[&|at| values[at], &|at| other[at]]);
        assert!(rows.len() <= 600, "{}", rows.len());
        assert!(rows.is_sorted_by(|one, other| one < other));
        for row in [0, 1, 4567, 4568, 7777, 9999] {
            assert!(rows.contains(&row), "{row}");
        }
        for (length, most) in [(0, 5), (1, 5), (5, 5), (6, 5), (100, 1), (3, 0)] {
            let rows = kept(length, most, &[&|_| f64::NAN]);
            assert!(rows.len() <= length, "{length} {most}: {rows:?}");
            assert_eq!(rows.last().copied(), length.checked_sub(1));
        }
    }

    #[test]
    fn the_smoothed_curve_is_the_mean_around_each_step() {
        assert_eq!(smoothed(&[1.0; 39]), None);
        // A straight line stays straight, except at its ends.
        let line: Vec<f64> = (0..1000).map(f64::from).collect();
        let smooth = smoothed(&line).unwrap();
        for (at, (value, expected)) in smooth.iter().zip(&line).enumerate() {
            let off = match at {
                0..20 => 1.1,
                20..980 => 1e-9,
                _ => 10.1,
            };
            assert!((value - expected).abs() < off, "{value} {expected}");
        }
        let mut step = vec![0.0; 500];
        step.extend([1.0; 500]);
        step[499] = f64::NAN;
        let smooth = smoothed(&step).unwrap();
        // Of the 41 steps around step 505, 15 are before the jump, one of them without a number.
        assert!((smooth[505] - 26.0 / 40.0).abs() < 1e-9, "{}", smooth[505]);
    }
}
