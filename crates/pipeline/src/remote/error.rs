use std::error::Error;

use serde::{Deserialize, Serialize};
use thiserror::Error as ThisError;

use crate::PipelineError;

/// The reason why a worker does not serve a stage.
#[derive(Debug, Clone, PartialEq, Eq, ThisError, Serialize, Deserialize)]
pub enum WorkerError {
    /// No worker answers at the address, or another one does.
    #[error("it cannot be reached: {reason}")]
    Unreachable {
        /// Error of the network.
        reason: String,
    },
    /// The ID in its address is no public key.
    #[error("its ID is not a public key")]
    NoKey,
    /// The worker has another token.
    #[error("it rejects the token")]
    Token,
    /// The worker serves another controller.
    #[error("it already serves a stage of the controller {controller}")]
    Busy {
        /// Key of that controller.
        controller: String,
    },
    /// Worker and controller differ.
    #[error("its {what} is {worker}, but the controller's is {controller}")]
    Mismatch {
        /// The property that differs.
        what: String,
        /// The worker's.
        worker: String,
        /// The controller's.
        controller: String,
    },
    /// The worker failed to execute a command.
    #[error("{reason}")]
    Failed {
        /// The worker's error.
        reason: String,
    },
}

impl From<PipelineError> for WorkerError {
    fn from(error: PipelineError) -> Self {
        Self::failed(&error)
    }
}

impl WorkerError {
    pub(super) fn because(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Failed { reason }
    }

    pub(super) fn failed(error: &(dyn Error + 'static)) -> Self {
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !reason.ends_with(&text) {
                reason = format!("{reason}: {text}");
            }
            source = cause.source();
        }
        Self::Failed { reason }
    }
}
