//! How long tensors were on their way, and how much of it anybody waited.

use std::ops::AddAssign;

use crate::{MicrobatchTimes, PassTimes};

/// Hops of micro-batches between stages of which at least one is in another process.
///
/// A hop begins when the pass is over whose result it carries, and ends when the tensor is there. It is
/// hidden as long as the stage that needs it has something else to do.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Transfers {
    /// Sum of the hops' seconds.
    pub seconds: f64,
    /// Seconds of it that the stage with the next pass had nothing else to do.
    pub waited: f64,
}

impl Transfers {
    /// Share of the hops' time in which the stage that needs them worked on something else; `None`
    /// without hops.
    pub fn overlap(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| 1.0 - self.waited / self.seconds)
    }

    /// One hop, from a pass of one stage to a pass of the other.
    fn hop(sent: &PassTimes, taken: &PassTimes) -> Option<Self> {
        let arrived = taken.arrived?;
        // Two clocks agree to a fraction of a round trip, no better.
        let seconds = (arrived - sent.done).max(0.0);
        let waited = (arrived - taken.free.max(sent.done)).clamp(0.0, seconds);
        Some(Self { seconds, waited })
    }

    /// All hops of a group's step between neighbours, from their times by stage; `linked[k]` is
    /// whether stages `k` and `k + 1` are in different processes. `None` without such a pair, or if
    /// one of them knows no times.
    pub(super) fn of(stages: &[Option<&[MicrobatchTimes]>], linked: &[bool]) -> Option<Self> {
        let mut all = Self::default();
        for (pair, _) in stages.windows(2).zip(linked).filter(|(_, linked)| **linked) {
            let [below, above] = [pair[0]?, pair[1]?];
            for (below, above) in below.iter().zip(above) {
                all += Self::hop(&below.forward, &above.forward)?;
                all += Self::hop(&above.backward, &below.backward)?;
            }
        }
        linked.contains(&true).then_some(all)
    }
}

impl AddAssign for Transfers {
    fn add_assign(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.waited += other.waited;
    }
}

#[cfg(test)]
mod tests {
    use super::Transfers;
    use crate::{MicrobatchTimes, PassTimes};

    fn pass(arrived: Option<f64>, free: f64, done: f64) -> PassTimes {
        PassTimes {
            arrived,
            free,
            done,
        }
    }

    #[test]
    fn what_a_stage_does_not_wait_for_is_hidden() {
        // Sent at 1, there at 3; the stage is free from `free` on.
        for (free, waited) in [(0.0, 2.0), (1.0, 2.0), (2.5, 0.5), (3.0, 0.0), (9.0, 0.0)] {
            let hop = Transfers::hop(&pass(None, 0.0, 1.0), &pass(Some(3.0), free, 10.0));
            let hop = hop.expect("it has arrived");
            assert!((hop.seconds - 2.0).abs() < 1e-12);
            assert!((hop.waited - waited).abs() < 1e-12, "{free}: {hop:?}");
        }
        // Clocks that disagree.
        let hop = Transfers::hop(&pass(None, 0.0, 1.0), &pass(Some(0.9), 0.5, 2.0));
        assert_eq!(hop, Some(Transfers::default()));
        assert_eq!(Transfers::default().overlap(), None);
        assert_eq!(
            Transfers {
                seconds: 2.0,
                waited: 0.5
            }
            .overlap(),
            Some(0.75)
        );
    }

    #[test]
    fn hops_of_both_ways_between_processes_are_summed() {
        let below = [MicrobatchTimes {
            forward: pass(None, 0.0, 1.0),
            backward: pass(Some(6.0), 3.0, 7.0),
        }];
        let above = [MicrobatchTimes {
            forward: pass(Some(2.0), 0.0, 3.0),
            backward: pass(None, 3.0, 4.0),
        }];
        let stages = [Some(&below[..]), Some(&above[..])];
        let all = Transfers::of(&stages, &[true]).expect("a link");
        // Up from 1 to 2, all of it waited for; down from 4 to 6, and free from 3.
        assert!((all.seconds - 3.0).abs() < 1e-12 && (all.waited - 3.0).abs() < 1e-12);
        assert_eq!(Transfers::of(&stages, &[false]), None);
        assert_eq!(Transfers::of(&[Some(&below), None], &[true]), None);
    }
}
