use loraloom_data::DataError;
use loraloom_model::ModelError;
use loraloom_pipeline::{PartitionError, simulate::SimulationError};
use loraloom_scheduler::SchedulerError;
use thiserror::Error;

use crate::error::NEVER_FITS_HINT;

/// What keeps a run from being planned.
#[derive(Debug, Error)]
pub enum PlanError {
    /// Rows, templates or the tokenizer.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model's configuration, its weights' headers, or an adapter to begin from.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tasks are none.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    /// The layers cannot be spread over the stages.
    #[error("`pipeline`: {0}")]
    Partition(#[from] PartitionError),
    /// The assumed speeds are none.
    #[error("cannot simulate the pipeline: {0}")]
    Simulation(#[from] SimulationError),
}

impl PlanError {
    /// What the user can do about it, for a `hint:` line.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Data(error) => error.hint(),
            Self::Model(error) => error.hint(),
            Self::Partition(PartitionError::TooManyStages { layers, .. }) => Some(format!(
                "name at most {layers} in `pipeline.stages`, one a layer"
            )),
            Self::Partition(PartitionError::Sum { .. }) => {
                Some("`balance: auto` finds the layers of each stage".to_owned())
            }
            Self::Scheduler(SchedulerError::NeverFits { .. }) => Some(NEVER_FITS_HINT.to_owned()),
            _ => None,
        }
    }
}
