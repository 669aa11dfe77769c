use std::sync::{Mutex, PoisonError};

use iroh::Endpoint;
use tokio::runtime::Runtime;

use super::connection;
use crate::PipelineError;

/// A controller's end of all its connections, which end together.
#[derive(Debug)]
pub(super) struct Link {
    endpoint: Endpoint,
    /// `None` when it has been dropped.
    runtime: Option<Runtime>,
    lost: Mutex<Option<Loss>>,
}

/// The first stage that was lost.
#[derive(Debug, Clone)]
struct Loss {
    stage: usize,
    address: String,
    reason: String,
}

impl From<Loss> for PipelineError {
    fn from(loss: Loss) -> Self {
        Self::StageLost {
            stage: loss.stage,
            address: loss.address,
            reason: loss.reason,
        }
    }
}

impl Link {
    pub(super) fn new() -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.enable_all().worker_threads(2).thread_name("network");
        let runtime = runtime.build()?;
        let endpoint = runtime.block_on(connection::bind(None))?;
        Ok(Self {
            endpoint,
            runtime: Some(runtime),
            lost: Mutex::new(None),
        })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn loss(&self) -> Option<Loss> {
        // Only ever set whole.
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.clone()
    }

    /// A stage has gone. Ends all connections, with which every wait for any stage ends.
    pub(super) fn lose(&self, stage: usize, address: &str, reason: &str) -> PipelineError {
        let loss = {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            let loss = || Loss {
                stage,
                address: address.to_owned(),
                reason: reason.to_owned(),
            };
            lost.get_or_insert_with(loss).clone()
        };
        if let Some(runtime) = &self.runtime {
            let endpoint = self.endpoint.clone();
            runtime.spawn(async move { endpoint.close().await });
        }
        loss.into()
    }

    /// # Errors
    /// [`PipelineError::StageLost`] if a stage is lost.
    pub(super) fn check(&self) -> Result<(), PipelineError> {
        self.loss().map_or(Ok(()), |loss| Err(loss.into()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Workers are free at once, not when they have heard nothing for a while.
            runtime.block_on(self.endpoint.close());
            runtime.shutdown_background();
        }
    }
}
