use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use iroh::Endpoint;
use tokio::runtime::Runtime;

use super::worker_connection::WorkerConnection;
use crate::{
    PipelineError,
    remote::{WorkerError, connection, wire::CONTROL},
};

/// All connections of a controller. They end together.
#[derive(Debug)]
pub(super) struct Link {
    endpoint: Endpoint,
    /// `None` when it has been dropped.
    runtime: Option<Runtime>,
    workers: Mutex<Vec<Weak<WorkerConnection>>>,
    end: Mutex<Option<End>>,
    /// Held during [`inquire`](Self::inquire).
    inquiry: Mutex<()>,
}

/// The stage because of which all connections ended.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) stage: usize,
    pub(super) address: String,
    /// True if the worker is lost, false if it failed.
    pub(super) lost: bool,
    pub(super) reason: String,
}

impl From<End> for PipelineError {
    fn from(end: End) -> Self {
        if end.lost {
            return Self::StageLost {
                stage: end.stage,
                address: end.address,
                reason: end.reason,
            };
        }
        Self::Worker {
            stage: end.stage,
            address: end.address,
            problem: WorkerError::because(end.reason),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic leaves the value half changed.
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
            workers: Mutex::default(),
            end: Mutex::default(),
            inquiry: Mutex::default(),
        })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Adds a worker.
    pub(super) fn join(&self, worker: Weak<WorkerConnection>) {
        locked(&self.workers).push(worker);
    }

    /// # Errors
    /// The reason for which all connections ended, if they did.
    pub(super) fn check(&self) -> Result<(), PipelineError> {
        let end = locked(&self.end).clone();
        end.map_or(Ok(()), |end| Err(end.into()))
    }

    /// Asks all workers for failures, and ends all connections if there is one. A lost stage counts
    /// before a stage's own failure, and that before a failure that another stage caused.
    pub(super) fn inquire(&self) -> Option<PipelineError> {
        let _inquiry = locked(&self.inquiry);
        if let Err(end) = self.check() {
            return Some(end);
        }
        let workers = locked(&self.workers).clone();
        let mut worst: Option<(u8, End)> = None;
        for worker in workers.iter().filter_map(Weak::upgrade) {
            let (rank, lost, reason) = match worker.health() {
                Ok(None) => continue,
                // If no other stage has failed, the connection to this one has.
                Ok(Some(failure)) if failure.inherited => (0, true, failure.reason),
                Ok(Some(failure)) => (1, false, failure.reason),
                Err(_) => (2, true, "its connection closed".to_owned()),
            };
            if worst.as_ref().is_none_or(|(than, _)| rank > *than) {
                worst = Some((rank, worker.end(lost, reason)));
            }
        }
        worst.map(|(_, end)| self.end(end))
    }

    /// Ends all connections, and with them every wait for a stage. The first reason counts.
    pub(super) fn end(&self, end: End) -> PipelineError {
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
            // Frees the workers at once; otherwise they wait until the connections time out.
            runtime.block_on(self.endpoint.close());
            runtime.shutdown_background();
        }
    }
}

/// Time between a session's answer and the next question.
const PAUSE: Duration = Duration::from_secs(1);

/// Time between two checks of the waiting times.
const LOOK: Duration = Duration::from_millis(250);

/// Watches a worker's sessions until it is dropped.
///
/// When a connection ends, because the worker ends or nothing arrives any more, every wait on its
/// sessions ends. A session may also end alone, or hang on a working connection. So a thread per
/// session asks it again and again, and another one checks how long the answers take.
#[derive(Debug)]
pub(super) struct Monitor {
    stopped: Arc<AtomicBool>,
}

/// Time of the question that a session has not answered yet.
type Waiting = Arc<Mutex<Option<Instant>>>;

impl Monitor {
    /// Watches the sessions of a worker. The stage is lost if one does not answer within `deadline`.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(worker: &Arc<WorkerConnection>, deadline: Duration) -> io::Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let monitor = Self {
            stopped: Arc::clone(&stopped),
        };
        let mut waiting: Vec<Waiting> = Vec::new();
        for (index, session) in worker.sessions().iter().enumerate() {
            let (worker, session) = (Arc::downgrade(worker), session.clone());
            let stopped = Arc::clone(&stopped);
            let own = Waiting::default();
            waiting.push(Arc::clone(&own));
            let watch = move || {
                while !stopped.load(Ordering::Relaxed) {
                    *locked(&own) = Some(Instant::now());
                    // The control session also asks for time and memory. Others do not keep the connection.
                    let control = Some(&worker).filter(|_| index == CONTROL);
                    let answer = match control.and_then(Weak::upgrade) {
                        Some(worker) => worker.pulse(),
                        None => session.ping(),
                    };
                    *locked(&own) = None;
                    if answer.is_err() {
                        if !stopped.load(Ordering::Relaxed)
                            && let Some(worker) = worker.upgrade()
                        {
                            worker.session_ended();
                        }
                        break;
                    }
                    thread::sleep(PAUSE);
                }
            };
            thread::Builder::new().name("session".into()).spawn(watch)?;
        }
        let worker = Arc::downgrade(worker);
        let look = move || {
            while !stopped.load(Ordering::Relaxed) {
                let longest = waiting.iter().filter_map(|since| *locked(since)).min();
                if longest.is_some_and(|since| since.elapsed() > deadline) {
                    let seconds = deadline.as_secs_f64();
                    if let Some(worker) = worker.upgrade() {
                        worker.lose(&format!("no progress for {seconds} s"));
                    }
                    break;
                }
                thread::sleep(LOOK);
            }
        };
        thread::Builder::new().name("deadline".into()).spawn(look)?;
        Ok(monitor)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
