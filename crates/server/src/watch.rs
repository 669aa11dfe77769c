use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use loraloom_queue::{Cursor, Queue, QueueError, TaskId};

/// How often the queue is looked at. Where nothing has changed that takes microseconds.
const EVERY: Duration = Duration::from_millis(50);

/// A thread that looks for news in a queue while the server trains.
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
                    // The server's own look at the queue reports what is wrong with it.
                    Err(_) => set.store(true, Ordering::Relaxed),
                }
                thread::sleep(EVERY);
            }
        });
        Ok(Self {
            news,
            ended,
            thread: Some(thread),
        })
    }

    /// Set when there is something new.
    pub(crate) fn news(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.news)
    }

    /// Whoever looks at the queue says so before, so that nothing is missed.
    pub(crate) fn clear(&self) {
        self.news.store(false, Ordering::Relaxed);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic, and if it has, training went on without it.
            let _ = thread.join();
        }
    }
}
