use super::{
    random::normal,
    svd::{Matrix, svd_lowrank},
};

/// PEFT's `IncrementalPCA(lowrank=True, lowrank_seed=42)`: principal components of rows that come in batches.
#[derive(Debug, Default)]
pub(super) struct IncrementalPca {
    most: usize,
    seen: usize,
    mean: Vec<f64>,
    /// Sum of the squares of all rows' deviations from the mean.
    deviations: f64,
    /// Orthonormal rows.
    pub(super) components: Matrix,
    pub(super) singular_values: Vec<f64>,
    /// Share of each component in the variance.
    pub(super) explained: Vec<f64>,
}

/// PEFT's.
const SEED: u32 = 42;
const ITERATIONS: usize = 4;

impl IncrementalPca {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// True if no batch was taken yet.
    pub(super) fn is_new(&self) -> bool {
        self.seen == 0
    }

    /// Takes a batch, of at least as many rows as there are components.
    pub(super) fn partial_fit(&mut self, mut batch: Matrix) {
        let (rows, columns) = (batch.height(), batch.columns);
        let (before, first) = (self.seen as f64, self.is_new());
        let after = before + rows as f64;
        let mut sums = vec![0.0; columns];
        for row in batch.rows() {
            sums.iter_mut()
                .zip(row)
                .for_each(|(sum, value)| *sum += value);
        }
        let batch_mean: Vec<f64> = sums.iter().map(|sum| sum / rows as f64).collect();
        for row in batch.rows_mut() {
            let pairs = row.iter_mut().zip(&batch_mean);
            pairs.for_each(|(value, mean)| *value -= mean);
        }
        self.deviations += batch.values.iter().map(|value| value * value).sum::<f64>();
        if first {
            self.mean = batch_mean;
        } else {
            let moved: Vec<f64> = self
                .mean
                .iter()
                .zip(&batch_mean)
                .map(|(a, b)| a - b)
                .collect();
            let share = before / after * rows as f64;
            self.deviations += share * moved.iter().map(|value| value * value).sum::<f64>();
            let mut stacked = self.components.clone();
            stacked.scale_rows(&self.singular_values);
            stacked.values.append(&mut batch.values);
            stacked
                .values
                .extend(moved.iter().map(|value| share.sqrt() * value));
            batch = stacked;
            for (mean, sum) in self.mean.iter_mut().zip(sums) {
                *mean = (*mean * before + sum) / after;
            }
        }
        // PEFT decomposes the first batch in `float32`, later ones in `float64`.
        let svd = svd_lowrank(&batch, 2 * self.most, ITERATIONS, |count| {
            normal(SEED, count, first)
        });
        self.seen += rows;
        self.components = svd.right;
        self.components.values.truncate(self.most * columns);
        for row in self.components.rows_mut() {
            flip(row);
        }
        self.singular_values = svd.values;
        self.singular_values.truncate(self.most);
        let shares = self.singular_values.iter();
        self.explained = shares
            .map(|value| value * value / self.deviations)
            .collect();
    }
}

/// Gives a row the sign with which its largest element is positive.
fn flip(row: &mut [f64]) {
    let largest = row
        .iter()
        .copied()
        .reduce(|a, b| if b.abs() > a.abs() { b } else { a });
    if largest.is_some_and(|value| value < 0.0) {
        for value in row {
            *value = -*value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{IncrementalPca, Matrix, normal};

    /// Batches together have the components, shares and signs of all rows at once.
    #[test]
    fn batches_are_as_all_rows() {
        let (rows, columns) = (60, 6);
        let mut values = normal(7, rows * columns, false);
        for row in values.chunks_mut(columns) {
            for (at, value) in row.iter_mut().enumerate() {
                *value = *value * 0.5f64.powi(at as i32) + at as f64;
            }
        }
        let matrix = |values: &[f64]| Matrix {
            columns,
            values: values.to_vec(),
        };
        let (mut whole, mut parts) = (IncrementalPca::new(6), IncrementalPca::new(6));
        whole.partial_fit(matrix(&values));
        for part in [0..20, 20..27, 27..60] {
            parts.partial_fit(matrix(&values[part.start * columns..part.end * columns]));
        }
        let close = |a: &[f64], b: &[f64]| {
            assert_eq!(a.len(), b.len());
            let mut pairs = a.iter().zip(b);
            assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-10), "{a:?} {b:?}");
        };
        close(&whole.components.values, &parts.components.values);
        close(&whole.explained, &parts.explained);
        assert!((whole.explained.iter().sum::<f64>() - 1.0).abs() < 1e-10);
    }
}
