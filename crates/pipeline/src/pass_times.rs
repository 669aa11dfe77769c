/// When a stage had what a pass takes, when it could begin, and when the pass was over, in seconds of
/// one clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PassTimes {
    /// When the tensor from the neighbouring stage was there; `None` where there is none to come.
    pub arrived: Option<f64>,
    /// When the stage had done all that comes before the pass.
    pub free: f64,
    /// When the pass was over.
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

/// What a stage measured of a group's step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepTimes {
    /// Seconds that it worked on the step.
    pub busy: f64,
    /// By micro-batch.
    pub microbatches: Vec<MicrobatchTimes>,
}

impl PassTimes {
    /// The same on a clock that is `difference` seconds behind.
    fn shifted(self, difference: f64) -> Self {
        Self {
            arrived: self.arrived.map(|arrived| arrived - difference),
            free: self.free - difference,
            done: self.done - difference,
        }
    }
}

/// Numbers for one time: whole seconds and the rest, since `f32` does not hold both for long.
const TIME: usize = 2;

/// Numbers for a micro-batch: three times for each pass.
const MICROBATCH: usize = 6 * TIME;

impl StepTimes {
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
        let passes = self.microbatches.iter().flat_map(|times| {
            [times.forward, times.backward]
                .into_iter()
                .flat_map(|pass| {
                    [pass.arrived, Some(pass.free), Some(pass.done)]
                        .into_iter()
                        .flat_map(pair)
                })
        });
        std::iter::once(self.busy as f32).chain(passes).collect()
    }

    /// From numbers of a stage whose clock is `difference` seconds ahead of the caller's.
    pub(crate) fn from_values(values: &[f32], difference: f64) -> Self {
        let (busy, rest) = values.split_first().unwrap_or((&0.0, &[]));
        let microbatches = rest.chunks_exact(MICROBATCH).map(|chunk| {
            let time = |at: usize| f64::from(chunk[at * TIME]) + f64::from(chunk[at * TIME + 1]);
            let pass = |first: usize| {
                let pass = PassTimes {
                    arrived: Some(time(first)).filter(|&arrived| arrived >= 0.0),
                    free: time(first + 1),
                    done: time(first + 2),
                };
                pass.shifted(difference)
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

#[cfg(test)]
mod tests {
    use super::{MicrobatchTimes, PassTimes, StepTimes};

    #[test]
    fn times_survive_the_way_to_the_tenth_of_a_microsecond_for_weeks() {
        let pass = |arrived, free: f64| PassTimes {
            arrived,
            free,
            done: free + 0.25,
        };
        for day in [0.0, 1.0, 30.0] {
            let now = day * 86_400.0 + 12.345_678_9;
            let times = StepTimes {
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
            assert_eq!(values.len(), StepTimes::length(2));
            let found = StepTimes::from_values(&values, 2.0);
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
}
