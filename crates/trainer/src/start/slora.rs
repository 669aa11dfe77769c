//! SLoRA (Babakniya et al., 2023): a change of some elements of a weight, and adapters that begin with its components.

use super::{
    random::{normal, uniform},
    svd::{Matrix, Svd},
    weights::{EXACT, first_components, sized},
};

/// Elements of a weight of this many that are trained.
pub(crate) fn trained(elements: usize, density: f64) -> usize {
    (density * elements as f64).round() as usize
}

/// Random places of the trained elements among all, in order: a function of the numbers alone.
pub(crate) fn mask(elements: usize, density: f64, seed: u32) -> Vec<usize> {
    // Knuth's selection sampling: each subset of this size is as likely.
    let mut wanted = trained(elements, density);
    let mut random = uniform(seed);
    let is_taken = |at: &usize| {
        let taken = random() * ((elements - at) as f64) < wanted as f64;
        wanted -= usize::from(taken);
        taken
    };
    (0..elements).filter(is_taken).collect()
}

/// The sum of values, each times a share.
pub(crate) fn mean<'a>(of: impl IntoIterator<Item = (&'a [f32], f64)>) -> Vec<f32> {
    let mut sums: Vec<f64> = Vec::new();
    for (values, share) in of {
        sums.resize(values.len(), 0.0);
        let pairs = sums.iter_mut().zip(values);
        pairs.for_each(|(sum, value)| *sum += share * f64::from(*value));
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}

/// The first components of a change of a weight.
#[derive(Debug)]
pub(crate) struct Change(Svd);

impl Change {
    /// The first r components of a change `[d_in, d_out]` with these values at these places.
    pub(crate) fn new(
        [d_in, d_out]: [usize; 2],
        (at, values): (&[usize], &[f32]),
        r: usize,
        seed: u32,
    ) -> Self {
        let mut dense = vec![0.0; d_in * d_out];
        for (&at, &value) in at.iter().zip(values) {
            dense[at] = f64::from(value);
        }
        let matrix = Matrix {
            columns: d_out,
            values: dense,
        };
        let random = |count| normal(seed, count, false);
        Self(first_components(&matrix, r, random))
    }

    /// Rows of A and of B whose product, times the scale, is the best approximation of this rank; fewer if the change
    /// has a smaller rank. Rows of A are as long as those of a fresh adapter are on average: with equal shares both would
    /// be short where the change is small, and learn little.
    pub(crate) fn factors(&self, r: usize, scale: f64) -> [Vec<f32>; 2] {
        let Svd {
            left,
            values,
            right,
        } = &self.0;
        let least = EXACT * values.first().copied().unwrap_or(0.0);
        let count = values.iter().take(r).filter(|&&one| one > least).count();
        let values = &values[..count];
        let length = (1f64 / 3.0).sqrt();
        let of_b = |value| value / (scale * length);
        [sized(left, values, |_| length), sized(right, values, of_b)]
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, mask, mean};

    #[test]
    fn a_mask_has_as_many_places_as_asked_anywhere() {
        let found = mask(10_000, 0.0123, 7);
        assert_eq!(found.len(), 123);
        assert!(found.is_sorted_by(|a, b| a < b) && found[122] < 10_000);
        assert_eq!(found, mask(10_000, 0.0123, 7));
        assert_ne!(found, mask(10_000, 0.0123, 8));
        let later = found.iter().filter(|&&at| at >= 5000).count();
        assert!(
            (40..84).contains(&later),
            "{later} of 123 in the second half"
        );
        assert!(mask(40, 1.0, 7).into_iter().eq(0..40));
        assert!(mask(40, 0.01, 7).is_empty());
    }

    #[test]
    fn a_mean_has_shares() {
        let (one, other): ([f32; 2], [f32; 2]) = ([1.0, 4.0], [5.0, -4.0]);
        assert_eq!(mean([(&one[..], 0.75), (&other[..], 0.25)]), [2.0, 2.0]);
    }

    /// A change of rank 2 has two ranks, whatever is asked for; one of none has none.
    #[test]
    fn a_change_has_the_ranks_that_it_has() {
        let (at, values) = ([0, 9, 23], [3.0, 2.0, -2.0]);
        let change = |values: &[f32], r| Change::new([4, 6], (&at, values), r, 1);
        let [a, b] = change(&values, 3).factors(3, 0.5);
        assert_eq!((a.len(), b.len()), (3 * 4, 3 * 6));
        let [a, b] = change(&values[..2], 3).factors(3, 0.5);
        assert_eq!((a.len(), b.len()), (2 * 4, 2 * 6));
        let product = |row: usize, column: usize| {
            let ranks = (0..2).map(|rank| a[rank * 4 + row] * b[rank * 6 + column]);
            0.5 * ranks.sum::<f32>()
        };
        for place in 0..24 {
            let expected = [(0, 3.0), (9, 2.0)]
                .into_iter()
                .find(|(at, _)| *at == place);
            let expected = expected.map_or(0.0, |(_, value)| value);
            assert!(
                (product(place / 6, place % 6) - expected).abs() < 1e-6,
                "{place}"
            );
        }
        let [a, b] = change(&[0.0; 3], 2).factors(2, 1.0);
        assert!(a.is_empty() && b.is_empty());
    }
}
