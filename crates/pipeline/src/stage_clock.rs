use std::{
    collections::VecDeque,
    sync::{LazyLock, Mutex, PoisonError},
    time::Instant,
};

/// How many answers are remembered.
#[cfg(any(feature = "remote", test))]
const REMEMBERED: usize = 8;

/// Seconds of this process's clock, which begins with its first use.
pub(crate) fn now() -> f64 {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGINNING.elapsed().as_secs_f64()
}

/// How far the clock of a stage in another process is ahead of this one's.
///
/// As in NTP: an answer that says the other's time was given at some time between question and
/// answer, and the answer that came soonest tells it best. Of the last ones only, since clocks drift.
#[derive(Debug, Default)]
pub struct StageClock {
    /// Round trip and difference, in seconds.
    answers: Mutex<VecDeque<(f64, f64)>>,
}

impl StageClock {
    /// Notes that the other said `said` to a question asked and answered at those times of ours.
    #[cfg(any(feature = "remote", test))]
    pub(crate) fn observe(&self, asked: f64, answered: f64, said: f64) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() == REMEMBERED {
            answers.pop_front();
        }
        answers.push_back((answered - asked, said - f64::midpoint(asked, answered)));
    }

    /// Seconds that the other clock is ahead; 0 before anything was observed.
    pub(crate) fn difference(&self) -> f64 {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let soonest = answers
            .iter()
            .min_by(|left, right| left.0.total_cmp(&right.0));
        soonest.map_or(0.0, |&(_, difference)| difference)
    }
}

#[cfg(test)]
mod tests {
    use super::StageClock;

    #[test]
    fn the_soonest_of_the_last_answers_counts() {
        let clock = StageClock::default();
        assert!(clock.difference().abs() < 1e-12);
        clock.observe(0.0, 0.001, 5.0);
        clock.observe(1.0, 1.5, 6.4);
        assert!((clock.difference() - 4.9995).abs() < 1e-9);
        for second in 0..8 {
            let asked = f64::from(second);
            clock.observe(asked, asked + 0.5, asked + 7.25);
        }
        assert!((clock.difference() - 7.0).abs() < 1e-9, "the first is old");
    }
}
