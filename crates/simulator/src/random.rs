/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014): the same numbers from the same seed on every machine.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A sequence for one job, so that its draws do not depend on other jobs.
    pub(super) fn of_job(seed: u64, job: u64) -> Self {
        Self(Self(seed).next() ^ Self(job).next())
    }

    /// Uniform over all 64-bit numbers.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform over 0 to `end`, without `end`; 0 if `end` is 0. The bias of at most `end` / 2^64 is
    /// far below what a simulation shows.
    pub(super) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// One of the values, with equal probabilities; `None` if there are none.
    pub(super) fn choose<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len())).copied()
    }

    /// Uniform over [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponential with mean 1: the time between events of a Poisson process with one event in a unit of time.
    pub(super) fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Mean 0, standard deviation 1 (Irwin–Hall of twelve draws: no logarithm, whose last bit
    /// differs between machines).
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn the_sequence_is_splitmix64() {
        // From the reference implementation (prng.di.unimi.it/splitmix64.c), seed 1234567.
        let mut random = Random::new(1_234_567);
        let first = [(); 3].map(|()| random.next());
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn draws_are_spread_as_said() {
        let mut random = Random::new(3);
        let mut counts = [0; 4];
        for _ in 0..4000 {
            counts[random.below(4)] += 1;
        }
        assert!(
            counts.iter().all(|&n| (900..1100).contains(&n)),
            "{counts:?}"
        );
        let normal: Vec<f64> = (0..4000).map(|_| random.normal()).collect();
        let mean = normal.iter().sum::<f64>() / 4000.0;
        let variance = normal.iter().map(|x| x * x).sum::<f64>() / 4000.0;
        assert!(
            mean.abs() < 0.06 && (0.92..1.08).contains(&variance),
            "{mean} {variance}"
        );
        let mean = (0..4000).map(|_| random.exponential()).sum::<f64>() / 4000.0;
        assert!((0.95..1.05).contains(&mean), "{mean}");
        assert_eq!((random.below(0), random.choose::<u8>(&[])), (0, None));
    }
}
