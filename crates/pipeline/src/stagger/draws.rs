/// SplitMix64: numbers that are the same everywhere.
#[derive(Debug)]
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `count`.
    pub(super) fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        // The high half of a product: nearly even, without a division.
        ((u128::from(mixed) * count as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Draws;

    #[test]
    fn all_numbers_come_about_as_often() {
        let mut draws = Draws::new(1);
        let mut counts = [0_u32; 7];
        for _ in 0..7000 {
            counts[draws.below(7)] += 1;
        }
        assert!(
            counts.iter().all(|count| (900..1100).contains(count)),
            "{counts:?}"
        );
    }
}
