use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use loraloom_data::Tokenizer;
use loraloom_inference::Service;
use tokio::sync::Semaphore;

use super::{
    detokenizer::Decoder,
    key::{Caller, Keys},
    metrics::Metrics,
    served_queue::ServedQueue,
};
use crate::Client;

/// Limits of the HTTP interface.
#[derive(Debug, Clone)]
pub struct HttpLimits {
    /// Most bytes of a request's body.
    pub body_bytes: usize,
    /// Most connections at a time. Others wait until one ends.
    pub connections: usize,
    /// Most requests for text that are read, or wait for a whole answer, at a time. Others are told to come later.
    pub requests: usize,
    /// Longest time in which the head of a request arrives, and its body.
    pub read: Duration,
    /// Longest time in which a client takes nothing of what is sent to it.
    pub write: Duration,
    /// Longest time in which answers end after the server stops.
    pub drain: Duration,
    /// Most answers to a request: `n` for each of its prompts.
    pub answers: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            body_bytes: 4 << 20,
            connections: 8192,
            requests: 1024,
            read: Duration::from_secs(30),
            write: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            answers: 128,
        }
    }
}

/// What the HTTP interface answers with.
#[derive(Debug)]
pub struct HttpState {
    pub(crate) service: Service,
    pub(crate) decoder: Arc<Decoder>,
    pub(crate) context: usize,
    pub(crate) keys: Option<Keys>,
    pub(crate) anonymous: Arc<Caller>,
    pub(crate) limits: HttpLimits,
    pub(crate) metrics: Arc<Metrics>,
    /// Seconds since 1970.
    pub(crate) started: u64,
    pub(crate) requests: Semaphore,
    /// A long prompt takes a core for seconds and memory of many times its length.
    pub(crate) encoders: Semaphore,
    /// Of a server that trains.
    pub(crate) queue: Option<ServedQueue>,
}

impl HttpState {
    /// The tokenizer is the base model's, `context` its longest sequence in tokens. Without keys everybody may send
    /// requests, and changes adapters and tasks from this machine.
    pub fn new(
        service: Service,
        tokenizer: Tokenizer,
        context: usize,
        keys: Option<Keys>,
        limits: HttpLimits,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            service,
            decoder: Arc::new(Decoder::new(tokenizer)),
            context,
            keys,
            anonymous: Arc::new(Caller::anonymous()),
            requests: Semaphore::new(limits.requests),
            limits,
            metrics: Arc::new(Metrics::default()),
            started: now(),
            encoders: Semaphore::new(cores),
            queue: None,
        }
    }

    /// Also answers requests for the tasks of a queue.
    #[must_use]
    pub fn with_queue(self, client: Client) -> Self {
        Self {
            queue: Some(ServedQueue::new(client)),
            ..self
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
