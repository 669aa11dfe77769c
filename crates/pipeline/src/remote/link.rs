use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use iroh::Endpoint;
use tokio::runtime::Runtime;

use super::{connection, error::WorkerError, line::Line, wire::Trouble};
use crate::PipelineError;

/// A controller's end of all its connections, which end together.
#[derive(Debug)]
pub(super) struct Link {
    endpoint: Endpoint,
    /// `None` when it has been dropped.
    runtime: Option<Runtime>,
    lines: Mutex<Vec<Weak<Line>>>,
    end: Mutex<Option<End>>,
    /// Held while somebody finds out what has happened.
    inquiry: Mutex<()>,
}

/// What ended all of them.
#[derive(Debug, Clone)]
struct End {
    stage: usize,
    address: String,
    cause: Cause,
}

#[derive(Debug, Clone)]
enum Cause {
    Lost(String),
    Failed(String),
}

impl From<End> for PipelineError {
    fn from(end: End) -> Self {
        let End {
            stage,
            address,
            cause,
        } = end;
        match cause {
            Cause::Lost(reason) => Self::StageLost {
                stage,
                address,
                reason,
            },
            Cause::Failed(reason) => Self::Worker {
                stage,
                address,
                problem: WorkerError::Failed { reason },
            },
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind it is only ever changed at once.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    pub(super) fn new() -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime
            .enable_all()
            .worker_threads(2)
            .thread_name("network");
        let runtime = runtime.build()?;
        let endpoint = runtime.block_on(connection::bind(None))?;
        Ok(Self {
            endpoint,
            runtime: Some(runtime),
            lines: Mutex::default(),
            end: Mutex::default(),
            inquiry: Mutex::default(),
        })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Counts a worker in.
    pub(super) fn join(&self, line: Weak<Line>) {
        locked(&self.lines).push(line);
    }

    /// # Errors
    /// What ended all connections, if anything did.
    pub(super) fn check(&self) -> Result<(), PipelineError> {
        let end = locked(&self.end).clone();
        end.map_or(Ok(()), |end| Err(end.into()))
    }

    /// A stage does not get on any more.
    pub(super) fn lose(&self, stage: usize, address: &str, reason: &str) -> PipelineError {
        let cause = Cause::Lost(reason.to_owned());
        let address = address.to_owned();
        self.end(End {
            stage,
            address,
            cause,
        })
    }

    /// Finds out what is wrong with any of the workers, and ends all connections if something is. A
    /// stage that is lost is what makes others fail, and a stage's own failure what others inherit.
    pub(super) fn inquire(&self) -> Option<PipelineError> {
        let _inquiry = locked(&self.inquiry);
        if let Err(end) = self.check() {
            return Some(end);
        }
        let lines: Vec<_> = locked(&self.lines)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let mut worst: Option<(u8, End)> = None;
        for line in lines {
            let (rank, cause) = match line.health() {
                Ok(None) => continue,
                Ok(Some(Trouble {
                    reason,
                    inherited: false,
                })) => (1, Cause::Failed(reason)),
                // If nobody else has failed, the way to this stage has.
                Ok(Some(Trouble { reason, .. })) => (0, Cause::Lost(reason)),
                Err(_) => (2, Cause::Lost("its connection has ended".to_owned())),
            };
            if worst.as_ref().is_none_or(|(than, _)| rank > *than) {
                let (stage, address) = line.place();
                let end = End {
                    stage,
                    address: address.to_owned(),
                    cause,
                };
                worst = Some((rank, end));
            }
        }
        worst.map(|(_, end)| self.end(end))
    }

    /// Ends all connections, with which every wait for any stage ends. The first reason counts.
    fn end(&self, end: End) -> PipelineError {
        let first = locked(&self.end).get_or_insert(end).clone();
        if let Some(runtime) = &self.runtime {
            let endpoint = self.endpoint.clone();
            runtime.spawn(async move { endpoint.close().await });
        }
        first.into()
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
