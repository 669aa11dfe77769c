//! The learning rate over the steps, as in transformers' `get_scheduler`.

use std::f64::consts::PI;

use crate::{LrSchedulerType, TrainSettings};

impl LrSchedulerType {
    /// The factor on the peak learning rate for optimizer step `step`, counted from 0.
    ///
    /// `warmup` and `total` are in optimizer steps. `cosine` is half a period (`num_cycles` 0.5),
    /// as in transformers.
    pub fn factor(self, step: usize, warmup: usize, total: usize) -> f64 {
        let ramp = step as f64 / warmup.max(1) as f64;
        let remaining = total.saturating_sub(warmup).max(1) as f64;
        match self {
            Self::ConstantWithWarmup | Self::Linear | Self::Cosine if step < warmup => ramp,
            Self::Constant | Self::ConstantWithWarmup => 1.0,
            Self::Linear => total.saturating_sub(step) as f64 / remaining,
            Self::Cosine => {
                let progress = (step - warmup) as f64 / remaining;
                (0.5 * (1.0 + (PI * progress).cos())).max(0.0)
            }
        }
    }
}

impl TrainSettings {
    /// Steps of warm-up in a training of `total` optimizer steps: `warmup_steps` if it is set,
    /// otherwise `warmup_ratio` of all steps, rounded up.
    pub fn warmup(&self, total: usize) -> usize {
        if self.warmup_steps > 0 {
            self.warmup_steps
        } else {
            (total as f64 * self.warmup_ratio).ceil() as usize
        }
    }

    /// The learning rate of optimizer step `step`, counted from 0, of `total`.
    pub fn learning_rate_at(&self, step: usize, total: usize) -> f64 {
        self.learning_rate
            * self
                .lr_scheduler_type
                .factor(step, self.warmup(total), total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(kind: LrSchedulerType, warmup: usize, total: usize) -> Vec<f64> {
        (0..=total)
            .map(|step| kind.factor(step, warmup, total))
            .collect()
    }

    fn assert_close(ours: &[f64], theirs: &[f64]) {
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert!((ours - theirs).abs() < 1e-12, "{ours} is not {theirs}");
        }
    }

    /// The four lambdas of transformers at warm-up 2 of 6 steps, worked out by hand.
    #[test]
    fn factors_are_those_of_transformers() {
        assert_close(&factors(LrSchedulerType::Constant, 2, 6), &[1.0; 7]);
        let warm = factors(LrSchedulerType::ConstantWithWarmup, 2, 6);
        assert_close(&warm, &[0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let linear = factors(LrSchedulerType::Linear, 2, 6);
        assert_close(&linear, &[0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]);
        let half = 0.5 * std::f64::consts::FRAC_1_SQRT_2;
        let cosine = factors(LrSchedulerType::Cosine, 2, 6);
        assert_close(&cosine, &[0.0, 0.5, 1.0, 0.5 + half, 0.5, 0.5 - half, 0.0]);
    }

    #[test]
    fn warm_up_as_long_as_the_training_does_not_divide_by_zero() {
        assert_close(&factors(LrSchedulerType::Linear, 2, 2), &[0.0, 0.5, 0.0]);
        assert_close(&factors(LrSchedulerType::Cosine, 2, 2), &[0.0, 0.5, 1.0]);
        assert_close(&factors(LrSchedulerType::Linear, 0, 0), &[0.0]);
    }

    #[test]
    fn warmup_steps_win_over_the_ratio_and_the_ratio_rounds_up() {
        let mut train = TrainSettings {
            warmup_ratio: 0.03,
            ..TrainSettings::default()
        };
        assert_eq!(train.warmup(101), 4);
        train.warmup_steps = 7;
        assert_eq!(train.warmup(101), 7);
        train.lr_scheduler_type = LrSchedulerType::Linear;
        assert!((train.learning_rate_at(7, 101) - 3e-4).abs() < 1e-12);
    }
}
