//! The learning rate over the steps, as in transformers' `get_scheduler`.

use std::f64::consts::PI;

use crate::{LrSchedulerKwargs, LrSchedulerType, RampType, TrainSettings};

impl LrSchedulerType {
    /// The keywords that transformers' function takes.
    pub(crate) fn keywords(self) -> &'static [&'static str] {
        match self {
            Self::Constant | Self::ConstantWithWarmup | Self::Linear => &[],
            Self::Cosine | Self::CosineWithRestarts => &["num_cycles"],
            Self::CosineWithMinLr => &["min_lr", "min_lr_rate", "num_cycles"],
            Self::Polynomial => &["lr_end", "power"],
            Self::InverseSqrt => &["timescale"],
            Self::WarmupStableDecay => &[
                "num_decay_steps",
                "num_stable_steps",
                "warmup_type",
                "decay_type",
                "min_lr_ratio",
                "num_cycles",
            ],
        }
    }
}

impl LrSchedulerKwargs {
    /// The last learning rate of `polynomial`.
    pub(crate) const LR_END: f64 = 1e-7;
    const POWER: f64 = 1.0;
    const CYCLES: f64 = 0.5;
    const RESTARTS: f64 = 1.0;
    const WARMUP: RampType = RampType::Linear;
    const DECAY: RampType = RampType::Cosine;

    /// The same with the defaults of a schedule that do not depend on the steps.
    #[must_use]
    pub fn filled(&self, kind: LrSchedulerType) -> Self {
        let of = |key: &str| kind.keywords().contains(&key);
        let cycles = match kind {
            LrSchedulerType::CosineWithRestarts => Self::RESTARTS,
            _ => Self::CYCLES,
        };
        Self {
            num_cycles: self.num_cycles.or(of("num_cycles").then_some(cycles)),
            lr_end: self.lr_end.or(of("lr_end").then_some(Self::LR_END)),
            power: self.power.or(of("power").then_some(Self::POWER)),
            warmup_type: self
                .warmup_type
                .or(of("warmup_type").then_some(Self::WARMUP)),
            decay_type: self.decay_type.or(of("decay_type").then_some(Self::DECAY)),
            min_lr_ratio: self.min_lr_ratio.or(of("min_lr_ratio").then_some(0.0)),
            ..self.clone()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The cosine after `progress`, from 0 to 1, of the decay.
    fn cosine(&self, progress: f64) -> f64 {
        let cycles = self.num_cycles.unwrap_or(Self::CYCLES);
        0.5 * (1.0 + (PI * cycles * 2.0 * progress).cos())
    }

    fn warmup_stable_decay(&self, step: usize, warmup: usize, total: usize) -> f64 {
        let decay = self.num_decay_steps.unwrap_or(0) as f64;
        // Below 0 where warm-up and decay are longer than the training: the decay begins late then.
        let rest = total as f64 - warmup as f64 - decay;
        let stable = self.num_stable_steps.map_or(rest, |steps| steps as f64);
        let least = self.min_lr_ratio.unwrap_or(0.0);
        let factor = if step < warmup {
            let progress = step as f64 / warmup as f64;
            match self.warmup_type.unwrap_or(Self::WARMUP) {
                RampType::Linear => progress,
                RampType::Cosine => 0.5 * (1.0 - (PI * progress).cos()),
                RampType::OneMinusSqrt => 1.0 - (1.0 - progress).sqrt(),
            }
        } else {
            let steps = step as f64 - warmup as f64 - stable;
            if steps < 0.0 {
                return 1.0;
            }
            if steps >= decay {
                return least;
            }
            let progress = steps / decay.max(1.0);
            match self.decay_type.unwrap_or(Self::DECAY) {
                RampType::Linear => 1.0 - progress,
                RampType::Cosine => self.cosine(progress),
                RampType::OneMinusSqrt => 1.0 - progress.sqrt(),
            }
        };
        (factor * (1.0 - least) + least).max(0.0)
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
        self.learning_rate * self.lr_factor(step, total)
    }

    /// The factor on all learning rates at optimizer step `step`, counted from 0, of `total`.
    pub fn lr_factor(&self, step: usize, total: usize) -> f64 {
        let (kind, kwargs) = (self.lr_scheduler_type, &self.lr_scheduler_kwargs);
        let warmup = self.warmup(total);
        match kind {
            LrSchedulerType::Constant => return 1.0,
            LrSchedulerType::WarmupStableDecay => {
                return kwargs.warmup_stable_decay(step, warmup, total);
            }
            _ if step < warmup => return step as f64 / warmup as f64,
            _ => {}
        }
        let after = (step - warmup) as f64;
        let remaining = total.saturating_sub(warmup).max(1) as f64;
        let progress = after / remaining;
        match kind {
            LrSchedulerType::Linear => total.saturating_sub(step) as f64 / remaining,
            LrSchedulerType::Cosine => kwargs.cosine(progress).max(0.0),
            LrSchedulerType::CosineWithMinLr => {
                let least = match kwargs.min_lr {
                    Some(min_lr) if self.learning_rate > 0.0 => min_lr / self.learning_rate,
                    _ => kwargs.min_lr_rate.unwrap_or(0.0),
                };
                (kwargs.cosine(progress) * (1.0 - least) + least).max(0.0)
            }
            LrSchedulerType::CosineWithRestarts if progress < 1.0 => {
                let cycles = kwargs.num_cycles.unwrap_or(LrSchedulerKwargs::RESTARTS);
                (0.5 * (1.0 + (PI * ((cycles * progress) % 1.0)).cos())).max(0.0)
            }
            LrSchedulerType::CosineWithRestarts => 0.0,
            LrSchedulerType::Polynomial => {
                let last = kwargs.lr_end.unwrap_or(LrSchedulerKwargs::LR_END);
                let left = (1.0 - progress)
                    .max(0.0)
                    .powf(kwargs.power.unwrap_or(LrSchedulerKwargs::POWER));
                let range = self.learning_rate - last;
                (range * left + last) / self.learning_rate
            }
            LrSchedulerType::InverseSqrt => {
                let default = if warmup > 0 { warmup } else { 10_000 };
                let scale = kwargs.timescale.unwrap_or(default) as f64;
                1.0 / ((after + scale) / scale).sqrt()
            }
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(kind: LrSchedulerType, warmup: usize, total: usize) -> Vec<f64> {
        let train = TrainSettings {
            lr_scheduler_type: kind,
            warmup_steps: warmup,
            ..TrainSettings::default()
        };
        let steps = 0..=total;
        steps.map(|step| train.lr_factor(step, total)).collect()
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
