use std::error::Error;

use serde::{Deserialize, Serialize};
use thiserror::Error as ThisError;

/// Why a worker does not serve a stage.
#[derive(Debug, Clone, PartialEq, Eq, ThisError, Serialize, Deserialize)]
pub enum WorkerError {
    /// Nobody answers there, or somebody else does.
    #[error("it cannot be reached: {reason}")]
    Unreachable {
        /// What was tried.
        reason: String,
    },
    /// The worker has another token.
    #[error("it refuses the token")]
    Token,
    /// The worker serves a controller already.
    #[error("it is serving another stage, of the controller {controller}")]
    Busy {
        /// Key of that controller.
        controller: String,
    },
    /// The two ends do not have the same.
    #[error("its {what} is {worker}, but the controller's is {controller}")]
    Mismatch {
        /// What differs.
        what: String,
        /// What the worker has.
        worker: String,
        /// What the controller has.
        controller: String,
    },
    /// The worker could not do what it was asked to.
    #[error("{reason}")]
    Failed {
        /// Its own words.
        reason: String,
    },
}

impl WorkerError {
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
