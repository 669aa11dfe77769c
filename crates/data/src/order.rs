//! The samples of each step, computable for any step at any time.

use crate::{error::DataError, permutation::Permutation};

/// The order of an adapter's rows, addressed by step.
///
/// An epoch takes every sample once; its last step is short if `rows_per_step` does not divide their
/// number. With shuffling each epoch has its own permutation, otherwise samples keep their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowOrder {
    num_samples: usize,
    rows_per_step: usize,
    shuffle: bool,
    seed: u64,
}

impl RowOrder {
    /// An order over `num_samples` samples, `rows_per_step` (batch size times accumulation) a step.
    ///
    /// # Errors
    /// [`DataError::EmptyOrder`] if either number is zero.
    pub fn new(
        num_samples: usize,
        rows_per_step: usize,
        shuffle: bool,
        seed: u64,
    ) -> Result<Self, DataError> {
        if num_samples == 0 || rows_per_step == 0 {
            return Err(DataError::EmptyOrder {
                num_samples,
                rows_per_step,
            });
        }
        Ok(Self {
            num_samples,
            rows_per_step: rows_per_step.min(num_samples),
            shuffle,
            seed,
        })
    }

    /// Indices of the samples that optimizer step `step`, from 0, takes: `rows_per_step`, fewer in
    /// the last step of an epoch, never none.
    pub fn rows(&self, step: usize) -> Vec<usize> {
        let epoch = step / self.steps_per_epoch();
        let start = (step % self.steps_per_epoch()) * self.rows_per_step;
        let end = start + self.num_rows(step);
        if self.shuffle {
            let permutation = Permutation::new(self.num_samples, self.seed, epoch as u64);
            (start..end).map(|index| permutation.at(index)).collect()
        } else {
            (start..end).collect()
        }
    }

    /// Number of samples that optimizer step `step`, from 0, takes.
    pub fn num_rows(&self, step: usize) -> usize {
        let start = (step % self.steps_per_epoch()) * self.rows_per_step;
        self.rows_per_step.min(self.num_samples - start)
    }

    /// Steps that take every sample once.
    pub fn steps_per_epoch(&self) -> usize {
        self.num_samples.div_ceil(self.rows_per_step)
    }

    /// Steps of `epochs` passes, rounded up, as transformers' trainer does.
    pub fn steps_for_epochs(&self, epochs: f64) -> usize {
        (epochs * self.steps_per_epoch() as f64).ceil() as usize
    }

    /// Rows of a full step: no more than there are samples.
    pub fn rows_per_step(&self) -> usize {
        self.rows_per_step
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::RowOrder;

    proptest! {
        #[test]
        fn an_epoch_is_a_permutation(
            num_samples in 1_usize..300, rows_per_step in 1_usize..40,
            shuffle: bool, seed: u64, epoch in 0_usize..1000,
        ) {
            let order = RowOrder::new(num_samples, rows_per_step, shuffle, seed).unwrap();
            let steps = order.steps_per_epoch();
            let batches: Vec<_> =
                (0..steps).map(|step| order.rows(epoch * steps + step)).collect();
            prop_assert!(batches[..steps - 1].iter().all(|rows| rows.len() == rows_per_step));
            for (step, rows) in batches.iter().enumerate() {
                prop_assert_eq!(rows.len(), order.num_rows(epoch * steps + step));
            }
            let mut rows = batches.concat();
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..num_samples).collect::<Vec<_>>());
        }

        /// The cursor of the PEFT reference: slice, then wrap where the slice reached the end.
        #[test]
        fn without_shuffling_it_is_the_reference_cursor(
            num_samples in 1_usize..50, rows_per_step in 1_usize..60,
        ) {
            let order = RowOrder::new(num_samples, rows_per_step, false, 7).unwrap();
            let mut cursor = 0;
            for step in 0..120 {
                let end = (cursor + rows_per_step).min(num_samples);
                prop_assert_eq!(order.rows(step), (cursor..end).collect::<Vec<_>>());
                cursor = if cursor + rows_per_step >= num_samples { 0 } else { cursor + rows_per_step };
            }
        }

        #[test]
        fn any_step_at_any_time_takes_the_same_rows(
            num_samples in 1_usize..300, rows_per_step in 1_usize..40, seed: u64,
            mut steps in prop::collection::vec(0_usize..100_000, 1..20),
        ) {
            let order = RowOrder::new(num_samples, rows_per_step, true, seed).unwrap();
            let forward: Vec<_> = steps.iter().map(|step| order.rows(*step)).collect();
            steps.reverse();
            let again = RowOrder::new(num_samples, rows_per_step, true, seed).unwrap();
            let mut backward: Vec<_> = steps.iter().map(|step| again.rows(*step)).collect();
            backward.reverse();
            prop_assert_eq!(forward, backward);
        }
    }

    #[test]
    fn no_step_has_more_rows_than_there_are() {
        let order = |rows_per_step| RowOrder::new(5, rows_per_step, true, 7).unwrap();
        for asked in [5, 6, usize::MAX] {
            assert_eq!(order(asked), order(5), "{asked}");
        }
        assert_eq!(order(4).rows_per_step(), 4);
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let order = |seed| RowOrder::new(100, 100, true, seed).unwrap();
        assert_ne!(order(0).rows(0), order(0).rows(1));
        assert_ne!(order(0).rows(0), order(1).rows(0));
    }

    /// Shuffled runs must be resumable by later versions: the order is pinned.
    #[test]
    fn the_order_does_not_change_between_versions() {
        let order = RowOrder::new(10, 10, true, 42).unwrap();
        assert_eq!(order.rows(0), [8, 5, 0, 3, 6, 4, 9, 2, 7, 1]);
    }

    #[test]
    fn steps_of_epochs_round_up() {
        let order = RowOrder::new(10, 4, true, 0).unwrap();
        assert_eq!(order.steps_per_epoch(), 3);
        assert_eq!(order.steps_for_epochs(2.0), 6);
        assert_eq!(order.steps_for_epochs(0.5), 2);
        assert_eq!(order.steps_for_epochs(0.0), 0);
    }

    #[test]
    fn empty_orders_are_refused() {
        assert!(RowOrder::new(0, 1, false, 0).is_err());
        assert!(RowOrder::new(1, 0, false, 0).is_err());
    }
}
