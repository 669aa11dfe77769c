/// The steps at which the trials of a sweep are compared: `grace · eta^k` for k = 0, 1, 2, …
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rungs {
    grace_period: usize,
    reduction_factor: usize,
}

impl Rungs {
    /// Rungs from step `grace_period` on, each `reduction_factor` (eta) times as far as the one
    /// before; about one in `reduction_factor` trials passes each.
    ///
    /// # Errors
    /// [`SweepError`] if the grace period is 0 or the factor below 2.
    pub fn new(grace_period: usize, reduction_factor: usize) -> Result<Self, SweepError> {
        if grace_period == 0 {
            return Err(SweepError::NoGracePeriod);
        }
        if reduction_factor < 2 {
            return Err(SweepError::ReductionFactor(reduction_factor));
        }
        Ok(Self {
            grace_period,
            reduction_factor,
        })
    }

    /// Eta: one trial in this many passes a rung.
    pub fn reduction_factor(&self) -> usize {
        self.reduction_factor
    }

    /// The step of rung `rung`, from 0; `None` if it is beyond any number of steps.
    pub fn step(&self, rung: usize) -> Option<usize> {
        let rung = u32::try_from(rung).ok()?;
        let factor = self.reduction_factor.checked_pow(rung)?;
        self.grace_period.checked_mul(factor)
    }

    /// The highest rung at or below `step`; `None` within the grace period.
    pub fn reached(&self, step: usize) -> Option<usize> {
        let steps = (0..).map_while(|rung| self.step(rung));
        steps
            .take_while(|&milestone| milestone <= step)
            .count()
            .checked_sub(1)
    }
}

/// Settings of a sweep that are out of range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// A rung at step 0 would compare trials that have learned nothing.
    #[error("the grace period is 0 steps, it must be at least 1")]
    NoGracePeriod,
    /// With a factor of 1, no trial would ever stop.
    #[error("the reduction factor is {0}, it must be at least 2")]
    ReductionFactor(usize),
    /// A loss that falls from the start would be called diverged.
    #[error("the multiple of the first loss is {0}, it must be finite and above 1")]
    Multiple(f64),
}

#[cfg(test)]
mod tests {
    use super::{Rungs, SweepError};

    #[test]
    fn rungs_are_powers_of_the_factor_after_the_grace_period() {
        let rungs = Rungs::new(10, 3).unwrap();
        let steps: Vec<_> = (0..4).map(|rung| rungs.step(rung)).collect();
        assert_eq!(steps, [Some(10), Some(30), Some(90), Some(270)]);
        let reached = [0, 9, 10, 29, 30, 269, 270].map(|step| rungs.reached(step));
        let expected = [None, None, Some(0), Some(0), Some(1), Some(2), Some(3)];
        assert_eq!(reached, expected);
    }

    #[test]
    fn no_number_of_steps_is_too_large() {
        let rungs = Rungs::new(1, 2).unwrap();
        assert_eq!(rungs.reached(usize::MAX), Some(63));
        assert_eq!((rungs.step(63), rungs.step(64)), (Some(1 << 63), None));
        let far = Rungs::new(usize::MAX, usize::MAX).unwrap();
        assert_eq!(far.reached(usize::MAX), Some(0));
        assert_eq!(far.reached(usize::MAX - 1), None);
    }

    #[test]
    fn settings_that_never_stop_anything_are_refused() {
        assert_eq!(Rungs::new(0, 3), Err(SweepError::NoGracePeriod));
        assert_eq!(Rungs::new(1, 1), Err(SweepError::ReductionFactor(1)));
        assert_eq!(Rungs::new(1, 0), Err(SweepError::ReductionFactor(0)));
    }
}
