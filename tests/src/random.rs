use std::{
    env,
    time::{SystemTime, UNIX_EPOCH},
};

/// Random numbers; splitmix64.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From `LORALOOM_TEST_SEED`, or the clock; the seed is printed.
    #[expect(clippy::print_stdout, reason = "a failure must be repeatable")]
    #[must_use]
    pub fn seeded() -> Self {
        let seed = match env::var("LORALOOM_TEST_SEED") {
            Ok(text) => text.parse().expect("LORALOOM_TEST_SEED is a number"),
            Err(_) => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_nanos() as u64),
        };
        println!("LORALOOM_TEST_SEED={seed}");
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }
}
