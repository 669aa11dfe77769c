use std::{fmt, sync::Arc};

use burn::tensor::Tensor;

use crate::{Passage, PipelineError, StageClock, StepTimes, Way};

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

/// Has a stage in another process note when tensors that are sent to it are there.
pub trait Arrivals: fmt::Debug + Send + Sync {
    /// The tensor sent last on this way is a micro-batch's.
    ///
    /// # Errors
    /// If the stage is lost.
    fn expect(&self, way: Way, at: Passage) -> Result<(), PipelineError>;
}
