use crate::sweep::split_mix::SplitMix;

/// Steps of a full training.
pub(crate) const STEPS: usize = 270;

/// Standard deviation of a measured loss: as much as neighbours in the final order of 64 curves are
/// apart, whose floors are spread over 1.2.
pub(crate) const NOISE: f64 = 0.02;

/// A synthetic learning curve: a floor, an excess over it that shrinks with the steps, and noise.
pub(crate) struct Curve {
    floor: f64,
    excess: f64,
    /// Steps in which an exponential falls by e, or after which a power law bends.
    scale: f64,
    /// `None` is an exponential.
    power: Option<f64>,
}

impl Curve {
    /// Half of the curves are power laws, half exponentials. Floor, height and speed are independent,
    /// so that curves cross: what is lowest early need not be lowest late.
    pub(crate) fn draw(random: &mut SplitMix) -> Self {
        let is_power = random.uniform(0.0, 1.0) < 0.5;
        Self {
            floor: random.uniform(0.8, 2.0),
            excess: random.uniform(0.8, 1.6),
            scale: random.log_uniform(3.0, 40.0),
            power: is_power.then(|| random.uniform(0.6, 1.4)),
        }
    }

    /// The loss after `step` steps without noise.
    pub(crate) fn loss(&self, step: usize) -> f64 {
        let time = step as f64 / self.scale;
        let shrunk = match self.power {
            Some(power) => (1.0 + time).powf(-power),
            None => (-time).exp(),
        };
        self.floor + self.excess * shrunk
    }

    pub(crate) fn measured(&self, step: usize, random: &mut SplitMix) -> f64 {
        self.loss(step) + NOISE * random.normal()
    }
}

/// The curve with the lowest loss at the end.
pub(crate) fn best(curves: &[Curve]) -> usize {
    let last = |&index: &usize| curves[index].loss(STEPS);
    let indices = 0..curves.len();
    indices
        .min_by(|a, b| last(a).total_cmp(&last(b)))
        .expect("there are curves")
}

/// The fraction of pairs whose order after `step` steps is not that at the end.
pub(crate) fn crossings(curves: &[Curve], step: usize) -> f64 {
    let (mut pairs, mut crossed) = (0_u32, 0_u32);
    for (index, a) in curves.iter().enumerate() {
        for b in &curves[..index] {
            let (early, late) = (a.loss(step) < b.loss(step), a.loss(STEPS) < b.loss(STEPS));
            pairs += 1;
            crossed += u32::from(early != late);
        }
    }
    f64::from(crossed) / f64::from(pairs)
}
