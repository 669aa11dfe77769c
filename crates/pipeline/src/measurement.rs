use std::sync::Arc;

use burn::tensor::Tensor;

use crate::{StageClock, StepTimes};

/// What a stage in another process will have measured of a group's step.
#[derive(Debug)]
pub struct Measurement {
    /// The numbers; see [`read`](Self::read).
    pub(crate) values: Tensor<1>,
    pub(crate) clock: Arc<StageClock>,
}

impl Measurement {
    /// Numbers that were read, in times of this process.
    pub(crate) fn read(clock: &StageClock, values: &[f32]) -> StepTimes {
        StepTimes::from_values(values, clock.difference())
    }
}
