use std::{
    collections::{HashMap, VecDeque},
    ops::AddAssign,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Instant,
};

use burn::tensor::Tensor;
use serde::Serialize;

use crate::MicrobatchId;

/// Times of a pass on a stage, in seconds of one clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PassTimes {
    /// When the tensor from the neighbouring stage arrived; `None` where the pass takes none.
    pub arrived: Option<f64>,
    /// When the stage had finished all work before the pass.
    pub free: f64,
    /// When the pass ended.
    pub done: f64,
}

/// Both passes of a micro-batch at a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MicrobatchTimes {
    /// Forward.
    pub forward: PassTimes,
    /// Backward.
    pub backward: PassTimes,
}

/// When a stage worked on a pass, in seconds of the controller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StagePass {
    /// The stage.
    pub stage: usize,
    /// The group.
    pub group: usize,
    /// The micro-batch of the group.
    pub microbatch: usize,
    /// True if it is the backward pass.
    pub backward: bool,
    /// When the tensor that it needs was there and the stage had finished all work before it.
    pub start: f64,
    /// When it ended.
    pub end: f64,
}

/// Times that a stage measured of a group's iteration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StageTimes {
    /// Seconds that it worked on the iteration.
    pub busy: f64,
    /// By micro-batch.
    pub microbatches: Vec<MicrobatchTimes>,
}

/// Measures the work of a stage, whose calls return when it is done.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    /// When the last work ended.
    free: f64,
    /// By group, of the iteration that it is at.
    times: HashMap<usize, StageTimes>,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self {
            free: now(),
            times: HashMap::new(),
        }
    }

    /// Records a group's work that ends now.
    pub(crate) fn worked(&mut self, group: usize, begun: f64) {
        self.free = now();
        self.times.entry(group).or_default().busy += self.free - begun;
    }

    /// Records a pass that ends now, forward or backward.
    pub(crate) fn passed(
        &mut self,
        at: MicrobatchId,
        arrived: Option<f64>,
        begun: f64,
        pass: fn(&mut MicrobatchTimes) -> &mut PassTimes,
    ) {
        let free = self.free;
        self.worked(at.group, begun);
        let done = self.free;
        let times = &mut self.times.entry(at.group).or_default().microbatches;
        if times.len() <= at.microbatch {
            times.resize(at.microbatch + 1, MicrobatchTimes::default());
        }
        *pass(&mut times[at.microbatch]) = PassTimes {
            arrived,
            free,
            done,
        };
    }

    /// Takes the times of a group's iteration.
    pub(crate) fn take(&mut self, group: usize) -> StageTimes {
        self.times.remove(&group).unwrap_or_default()
    }
}

/// Numbers for one time: whole seconds and the rest, since `f32` does not hold both for long.
const TIME: usize = 2;

/// Numbers for a micro-batch: three times for each pass.
const MICROBATCH: usize = 6 * TIME;

impl StageTimes {
    /// The passes of a group's iteration at a stage.
    pub(super) fn passes(&self, stage: usize, group: usize) -> impl Iterator<Item = StagePass> {
        let microbatches = self.microbatches.iter().enumerate();
        microbatches.flat_map(move |(microbatch, times)| {
            [(false, times.forward), (true, times.backward)].map(|(backward, times)| StagePass {
                stage,
                group,
                microbatch,
                backward,
                start: times.arrived.unwrap_or(times.free).max(times.free),
                end: times.done,
            })
        })
    }

    /// Length of [`to_values`](Self::to_values).
    #[cfg(any(feature = "remote", test))]
    pub(crate) fn length(microbatches: usize) -> usize {
        1 + microbatches * MICROBATCH
    }

    /// All numbers in a row, to be sent as a tensor.
    #[cfg(any(feature = "remote", test))]
    pub(crate) fn to_values(&self) -> Vec<f32> {
        // A time is never negative.
        let pair = |time: Option<f64>| {
            let time = time.unwrap_or(-1.0);
            [time.floor() as f32, (time - time.floor()) as f32]
        };
        let passes = self.microbatches.iter();
        let passes = passes.flat_map(|times| [times.forward, times.backward]);
        let times = passes.flat_map(|pass| [pass.arrived, Some(pass.free), Some(pass.done)]);
        let busy = std::iter::once(self.busy as f32);
        busy.chain(times.flat_map(pair)).collect()
    }

    /// From numbers of a stage whose clock is `difference` seconds ahead of the caller's.
    pub(crate) fn from_values(values: &[f32], difference: f64) -> Self {
        let (busy, rest) = values.split_first().unwrap_or((&0.0, &[]));
        let microbatches = rest.chunks_exact(MICROBATCH).map(|chunk| {
            let time = |at: usize| f64::from(chunk[at * TIME]) + f64::from(chunk[at * TIME + 1]);
            let pass = |first: usize| {
                let arrived = Some(time(first)).filter(|&arrived| arrived >= 0.0);
                PassTimes {
                    arrived: arrived.map(|arrived| arrived - difference),
                    free: time(first + 1) - difference,
                    done: time(first + 2) - difference,
                }
            };
            MicrobatchTimes {
                forward: pass(0),
                backward: pass(3),
            }
        });
        Self {
            busy: f64::from(*busy),
            microbatches: microbatches.collect(),
        }
    }
}

/// Unread times of a group's iteration on a stage in another process.
#[derive(Debug)]
pub struct PendingTimes {
    /// The numbers; see [`StageTimes::from_values`].
    pub(crate) values: Tensor<1>,
    pub(crate) clock: Arc<StageClock>,
}

/// Answers that are kept.
#[cfg(any(feature = "remote", test))]
const REMEMBERED: usize = 8;

/// Seconds since the first call in this process.
pub(crate) fn now() -> f64 {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGINNING.elapsed().as_secs_f64()
}

/// How far the clock of a stage in another process is ahead of this one's.
///
/// As in NTP: the other clock was read at some time between question and answer, so the answer with
/// the shortest round trip is the most exact. Only the last few count, since clocks drift.
#[derive(Debug, Default)]
pub struct StageClock {
    /// Round trip and difference, in seconds.
    answers: Mutex<VecDeque<(f64, f64)>>,
}

impl StageClock {
    /// Records that the other clock showed `said` between these two times of this process's clock.
    #[cfg(any(feature = "remote", test))]
    pub(crate) fn observe(&self, asked: f64, answered: f64, said: f64) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() == REMEMBERED {
            answers.pop_front();
        }
        answers.push_back((answered - asked, said - f64::midpoint(asked, answered)));
    }

    /// Seconds that the other clock is ahead; 0 before the first observation.
    pub(crate) fn difference(&self) -> f64 {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let soonest = answers
            .iter()
            .min_by(|left, right| left.0.total_cmp(&right.0));
        soonest.map_or(0.0, |&(_, difference)| difference)
    }
}

/// Times of transfers between stages in different processes.
///
/// A transfer begins when the pass ends whose result it carries, and ends when the tensor has arrived.
/// It is hidden while the stage that needs it has other work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TransferTimes {
    /// Sum of the transfers' seconds.
    pub seconds: f64,
    /// Part of it in which the receiving stage had no other work.
    pub waited: f64,
}

impl TransferTimes {
    /// Share of the transfers' time in which the receiving stage had other work; `None` without
    /// transfers.
    pub fn overlap(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| 1.0 - self.waited / self.seconds)
    }

    /// One transfer, from a pass of one stage to a pass of the other.
    fn between(sent: &PassTimes, taken: &PassTimes) -> Option<Self> {
        let arrived = taken.arrived?;
        // Two clocks differ by a fraction of a round trip.
        let seconds = (arrived - sent.done).max(0.0);
        let waited = (arrived - taken.free.max(sent.done)).clamp(0.0, seconds);
        Some(Self { seconds, waited })
    }

    /// All transfers of a group's iteration between neighbours, from their times by stage; `linked[k]` is
    /// whether stages `k` and `k + 1` are in different processes. `None` without such a pair, or if
    /// one of them has no times.
    pub(super) fn of(stages: &[Option<&[MicrobatchTimes]>], linked: &[bool]) -> Option<Self> {
        let mut all = Self::default();
        for (pair, _) in stages.windows(2).zip(linked).filter(|(_, linked)| **linked) {
            let [below, above] = [pair[0]?, pair[1]?];
            for (below, above) in below.iter().zip(above) {
                all += Self::between(&below.forward, &above.forward)?;
                all += Self::between(&above.backward, &below.backward)?;
            }
        }
        linked.contains(&true).then_some(all)
    }
}

impl AddAssign for TransferTimes {
    fn add_assign(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.waited += other.waited;
    }
}

#[cfg(test)]
mod tests {
    use super::{MicrobatchTimes, PassTimes, StageClock, StageTimes, TransferTimes};

    #[test]
    fn times_survive_the_way_to_the_tenth_of_a_microsecond_for_weeks() {
        let pass = |arrived, free: f64| PassTimes {
            arrived,
            free,
            done: free + 0.25,
        };
        for day in [0.0, 1.0, 30.0] {
            let now = day * 86_400.0 + 12.345_678_9;
            let times = StageTimes {
                busy: 0.5,
                microbatches: vec![
                    MicrobatchTimes {
                        forward: pass(None, now),
                        backward: pass(Some(now + 1.0), now + 2.0),
                    };
                    2
                ],
            };
            let values = times.to_values();
            assert_eq!(values.len(), StageTimes::length(2));
            let found = StageTimes::from_values(&values, 2.0);
            assert_eq!(found.microbatches.len(), 2);
            let MicrobatchTimes { forward, backward } = found.microbatches[1];
            assert_eq!(forward.arrived, None);
            for (found, expected) in [
                (forward.free, now - 2.0),
                (forward.done, now - 1.75),
                (backward.arrived.unwrap_or_default(), now - 1.0),
                (backward.free, now),
            ] {
                assert!((found - expected).abs() < 1e-7, "{found} {expected}");
            }
        }
    }

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
            let one = TransferTimes::between(&pass(None, 0.0, 1.0), &pass(Some(3.0), free, 10.0));
            let one = one.expect("it has arrived");
            assert!((one.seconds - 2.0).abs() < 1e-12);
            assert!((one.waited - waited).abs() < 1e-12, "{free}: {one:?}");
        }
        // Clocks that disagree.
        let one = TransferTimes::between(&pass(None, 0.0, 1.0), &pass(Some(0.9), 0.5, 2.0));
        assert_eq!(one, Some(TransferTimes::default()));
        assert_eq!(TransferTimes::default().overlap(), None);
        assert_eq!(
            TransferTimes {
                seconds: 2.0,
                waited: 0.5
            }
            .overlap(),
            Some(0.75)
        );
    }

    #[test]
    fn transfers_of_both_directions_are_summed() {
        let below = [MicrobatchTimes {
            forward: pass(None, 0.0, 1.0),
            backward: pass(Some(6.0), 3.0, 7.0),
        }];
        let above = [MicrobatchTimes {
            forward: pass(Some(2.0), 0.0, 3.0),
            backward: pass(None, 3.0, 4.0),
        }];
        let stages = [Some(&below[..]), Some(&above[..])];
        let all = TransferTimes::of(&stages, &[true]).expect("a link");
        // Up from 1 to 2, all of it waited for; down from 4 to 6, and free from 3.
        assert!((all.seconds - 3.0).abs() < 1e-12 && (all.waited - 3.0).abs() < 1e-12);
        assert_eq!(TransferTimes::of(&stages, &[false]), None);
        assert_eq!(TransferTimes::of(&[Some(&below), None], &[true]), None);
    }
}
