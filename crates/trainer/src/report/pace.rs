use std::time::Instant;

/// Seconds after which a measurement counts half.
const HALF_LIFE: f64 = 30.0;

/// Time of a step, including evaluations and other work between steps.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pace {
    seconds: f64,
    steps: f64,
    at: Option<Instant>,
}

impl Pace {
    /// Adds steps that were taken just now, in an iteration of `iteration` seconds. The time since the steps before
    /// also counts, if there were any.
    pub fn add(&mut self, steps: usize, iteration: f64, now: Instant) {
        let before = self.at.replace(now);
        let seconds = before.map_or(iteration, |at| now.duration_since(at).as_secs_f64());
        let kept = 0.5_f64.powf(seconds / HALF_LIFE);
        self.seconds = self.seconds * kept + seconds;
        self.steps = self.steps * kept + steps as f64;
    }

    /// Excludes the time until the next steps.
    pub fn pause(&mut self) {
        self.at = None;
    }

    /// Seconds of a step; `None` before the first.
    pub fn seconds_per_step(&self) -> Option<f64> {
        let seconds = self.seconds / self.steps;
        seconds.is_finite().then_some(seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Pace;

    #[test]
    fn all_time_between_steps_counts_and_what_is_old_fades() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut pace = Pace::default();
        assert_eq!(pace.seconds_per_step(), None);
        pace.add(2, 1.0, at(0));
        assert_eq!(pace.seconds_per_step(), Some(0.5));
        // Three seconds of it were an evaluation.
        pace.add(1, 1.0, at(4));
        let slower = pace.seconds_per_step().unwrap();
        assert!((1.6..1.8).contains(&slower), "{slower}");
        pace.pause();
        pace.add(1, 1.0, at(1000));
        assert!(pace.seconds_per_step().unwrap() < slower);
        pace.add(100, 300.0, at(1300));
        let newest = pace.seconds_per_step().unwrap();
        assert!((2.9..3.1).contains(&newest), "{newest}");
    }
}
