use std::sync::{Arc, Mutex, PoisonError};

use loraloom_trainer::EVENTS_FILE;
use tokio::{sync::Semaphore, task::spawn_blocking};

use super::{curves::CurveLog, error::HttpError, state::HttpState};
use crate::Client;

/// The queue of a server that trains, and the curves of its tasks.
#[derive(Debug)]
pub(crate) struct ServedQueue {
    client: Arc<Client>,
    curves: Arc<Mutex<CurveLog>>,
    /// A submission has all its rows in memory.
    submissions: Semaphore,
}

impl ServedQueue {
    pub(crate) fn new(client: Client) -> Self {
        let events = client.directory().join(EVENTS_FILE);
        Self {
            client: Arc::new(client),
            curves: Arc::new(Mutex::new(CurveLog::new(events))),
            submissions: Semaphore::new(1),
        }
    }

    /// The queue of a server.
    ///
    /// # Errors
    /// [`HttpError::NoQueue`] if the server only answers.
    pub(crate) fn of(state: &HttpState) -> Result<&Self, HttpError> {
        state.queue.as_ref().ok_or(HttpError::NoQueue)
    }

    /// Reads or writes the queue, on a thread that may wait for the disk.
    pub(crate) async fn on<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Client) -> Result<T, HttpError> + Send + 'static,
    ) -> Result<T, HttpError> {
        let client = Arc::clone(&self.client);
        let done = spawn_blocking(move || work(&client)).await;
        done.map_err(|error| HttpError::Internal(error.to_string()))?
    }

    /// As [`on`](Self::on), one submission at a time.
    pub(crate) async fn submitting<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Client) -> Result<T, HttpError> + Send + 'static,
    ) -> Result<T, HttpError> {
        let permit = self.submissions.acquire().await;
        let _permit = permit.map_err(|error| HttpError::Internal(error.to_string()))?;
        self.on(work).await
    }

    /// As [`on`](Self::on), with the run's curves as they are now.
    pub(crate) async fn with_curves<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Client, &CurveLog) -> Result<T, HttpError> + Send + 'static,
    ) -> Result<T, HttpError> {
        let curves = Arc::clone(&self.curves);
        self.on(move |client| {
            let mut curves = curves.lock().unwrap_or_else(PoisonError::into_inner);
            let read = curves.read_on();
            read.map_err(|error| HttpError::Internal(format!("cannot read events: {error}")))?;
            work(client, &curves)
        })
        .await
    }
}
