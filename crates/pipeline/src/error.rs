use batchlora::BatchLoraError;
use loraloom_model::ModelError;
use thiserror::Error;

/// What can go wrong in a stage.
#[derive(Debug, Error)]
pub enum PipelineError {
    /// Weights or adapters cannot be read or do not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Adapters and batch do not fit each other.
    #[error(transparent)]
    Adapter(#[from] BatchLoraError),
    /// A stage was asked for what another stage does.
    #[error("stage of layers {first}..{end} has no {part}")]
    NotHere {
        /// First decoder layer of the stage.
        first: usize,
        /// One past its last decoder layer.
        end: usize,
        /// What it lacks.
        part: &'static str,
    },
}
