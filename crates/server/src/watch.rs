use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use loraloom_scheduler::TaskId;

use crate::queue::{Cursor, Queue, QueueError};

/// How often the queue is polled; a poll without changes takes microseconds.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A thread that polls the queue while the server trains, for new tasks and requests.
#[derive(Debug)]
pub(crate) struct Watch {
    news: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the queue of a run directory.
    pub(crate) fn start(directory: &Path) -> Result<Self, QueueError> {
        let queue = Queue::open(directory)?;
        let news = Arc::new(AtomicBool::new(true));
        let ended = Arc::new(AtomicBool::new(false));
        let (set, end) = (Arc::clone(&news), Arc::clone(&ended));
        let thread = thread::spawn(move || {
            let (mut cursor, mut last) = (Cursor::default(), TaskId(0));
            while !end.load(Ordering::Relaxed) {
                match queue.changes(&mut cursor) {
                    Ok(changed) => {
                        let asks = changed.iter().any(|task| task.requested.is_some());
                        let newest = changed.iter().map(|task| task.id).max();
                        let newest = newest.unwrap_or(last).max(last);
                        if asks || newest > last {
                            set.store(true, Ordering::Relaxed);
                        }
                        last = newest;
                    }
                    // The server reads the queue then, and reports the error.
                    Err(_) => set.store(true, Ordering::Relaxed),
                }
                thread::sleep(POLL_INTERVAL);
            }
        });
        Ok(Self {
            news,
            ended,
            thread: Some(thread),
        })
    }

    /// Set when there are new tasks or requests.
    pub(crate) fn news(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.news)
    }

    /// Clears the flag. Call this before reading the queue, so that no change is missed.
    pub(crate) fn clear(&self) {
        self.news.store(false, Ordering::Relaxed);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Training does not depend on the thread, so its panic is no error.
            let _ = thread.join();
        }
    }
}
