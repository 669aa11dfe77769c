//! The parts of a dataset, and the choice of validation rows.

use crate::{
    error::DataError,
    permutation::{Permutation, mix},
};

/// A part of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Rows to train on.
    Training,
    /// Rows held out for validation.
    Validation,
}

impl Split {
    /// `training` or `validation`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Validation => "validation",
        }
    }
}

/// For each of `rows` rows of the dataset named `dataset`, true if it is held out.
///
/// `fraction` of them are, rounded, at least one unless it is zero. The choice depends only on the dataset's name and
/// `seed`, so that all adapters that share a dataset share the split.
///
/// # Errors
/// [`DataError::InvalidFraction`] outside [0, 1), [`DataError::NothingToTrain`] if no row is left.
pub(crate) fn held_out(
    dataset: &str,
    rows: usize,
    fraction: f64,
    seed: u64,
) -> Result<Vec<bool>, DataError> {
    let dataset_name = || dataset.to_owned();
    if !(0.0..1.0).contains(&fraction) {
        return Err(DataError::InvalidFraction {
            dataset: dataset_name(),
            fraction,
        });
    }
    let mut is_held_out = vec![false; rows];
    if fraction == 0.0 {
        return Ok(is_held_out);
    }
    let held_out = ((fraction * rows as f64).round() as usize).max(1);
    if held_out >= rows {
        return Err(DataError::NothingToTrain {
            dataset: dataset_name(),
            fraction,
            held_out,
            rows,
        });
    }
    let name = dataset
        .bytes()
        .fold(0, |state, byte| mix(state ^ u64::from(byte)));
    let permutation = Permutation::new(rows, seed, name);
    for index in 0..held_out {
        is_held_out[permutation.at(index)] = true;
    }
    Ok(is_held_out)
}

#[cfg(test)]
mod tests {
    use super::held_out;
    use crate::DataError;

    fn count(rows: usize, fraction: f64) -> usize {
        let is_held_out = held_out("name", rows, fraction, 0).unwrap();
        is_held_out.into_iter().filter(|held_out| *held_out).count()
    }

    #[test]
    fn the_fraction_is_rounded_and_at_least_one_row() {
        assert_eq!(count(100, 0.25), 25);
        assert_eq!(count(7, 0.5), 4);
        assert_eq!(count(10, 0.001), 1);
        assert_eq!(count(10, 0.0), 0);
    }

    #[test]
    fn the_split_depends_on_name_and_seed_only() {
        let split = |name, seed| held_out(name, 200, 0.3, seed).unwrap();
        assert_eq!(split("a", 1), split("a", 1));
        assert_ne!(split("a", 1), split("b", 1));
        assert_ne!(split("a", 1), split("a", 2));
    }

    #[test]
    fn something_must_be_left_to_train_on() {
        assert!(matches!(
            held_out("a", 1, 0.1, 0),
            Err(DataError::NothingToTrain { .. })
        ));
        assert!(matches!(
            held_out("a", 4, 0.99, 0),
            Err(DataError::NothingToTrain { .. })
        ));
        for fraction in [1.0, -0.1, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                held_out("a", 9, fraction, 0),
                Err(DataError::InvalidFraction { .. })
            ));
        }
    }
}
