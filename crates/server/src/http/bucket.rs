use std::time::Instant;

/// A limit a minute (a token bucket). It is full at first, and may be overdrawn by what is known only afterwards.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Also its size.
    per_minute: u32,
    left: f64,
    at: Instant,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(per_minute: u32) -> Self {
        Self {
            per_minute,
            left: f64::from(per_minute),
            at: Instant::now(),
        }
    }

    pub(crate) fn per_minute(&self) -> u32 {
        self.per_minute
    }

    /// Seconds until at least `needed` are left; 0 if they are.
    pub(crate) fn wait(&mut self, needed: f64, now: Instant) -> u64 {
        let rate = f64::from(self.per_minute) / 60.0;
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * rate).min(f64::from(self.per_minute));
        self.at = self.at.max(now);
        ((needed - self.left) / rate).ceil().max(0.0) as u64
    }

    pub(crate) fn take(&mut self, count: f64) {
        self.left -= count;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_fills_within_a_minute() {
        let mut bucket = Bucket::new(2);
        let start = Instant::now();
        for _ in 0..2 {
            assert_eq!(bucket.wait(1.0, start), 0);
            bucket.take(1.0);
        }
        assert_eq!(bucket.wait(1.0, start), 30);
        assert_eq!(bucket.wait(1.0, start + Duration::from_millis(20_500)), 10);
        assert_eq!(bucket.wait(1.0, start + Duration::from_secs(31)), 0);
        assert_eq!(bucket.wait(2.0, start + Duration::from_hours(1)), 0);
        assert_ne!(bucket.wait(3.0, start + Duration::from_hours(1)), 0);
    }

    #[test]
    fn an_overdraft_is_waited_for() {
        let mut bucket = Bucket::new(60);
        let start = Instant::now();
        bucket.take(100.0);
        assert_eq!(bucket.wait(1.0, start), 41);
    }
}
