//! Watching a worker's sessions.
//!
//! A connection that ends, because the worker does or nothing arrives any more, ends every wait on
//! its sessions; a session may also end alone, or be stuck while the connection is well. So every
//! session is asked all the time whether it gets on, by a thread of its own, and another one looks
//! at how long they have been waiting.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{CONTROL, line::Line, link::Link, session::Session};

/// How long a session is left alone between two questions.
const PAUSE: Duration = Duration::from_secs(1);

/// How often waiting times are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Stops watching when it is dropped.
#[derive(Debug)]
pub(super) struct Monitor {
    stopped: Arc<AtomicBool>,
}

/// Whose sessions are watched. What is watched may end meanwhile.
#[derive(Debug, Clone)]
struct Subject {
    stage: usize,
    address: String,
    link: Weak<Link>,
}

impl Subject {
    fn lose(&self, reason: &str) {
        if let Some(link) = self.link.upgrade() {
            link.lose(self.stage, &self.address, reason);
        }
    }

    /// A session has ended.
    fn silent(&self) {
        if let Some(link) = self.link.upgrade()
            && link.inquire().is_none()
        {
            link.lose(self.stage, &self.address, "one of its sessions has ended");
        }
    }
}

/// Since when a session has not answered.
type Waiting = Arc<Mutex<Option<Instant>>>;

fn set(waiting: &Waiting, since: Option<Instant>) {
    *waiting.lock().unwrap_or_else(PoisonError::into_inner) = since;
}

fn since(waiting: &Waiting) -> Option<Instant> {
    *waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Monitor {
    /// Watches the sessions of a line. If one has not answered for `deadline` the stage is lost.
    ///
    /// # Errors
    /// If there can be no further threads.
    pub(super) fn start(line: &Arc<Line>, deadline: Duration) -> io::Result<Self> {
        let (stage, address) = line.place();
        let subject = Subject {
            stage,
            address: address.to_owned(),
            link: Arc::downgrade(line.link()),
        };
        let stopped = Arc::new(AtomicBool::new(false));
        let monitor = Self {
            stopped: Arc::clone(&stopped),
        };
        let mut waiting = Vec::new();
        for (index, session) in line.sessions().iter().enumerate() {
            let session: Session = session.clone();
            let line = (index == CONTROL).then(|| Arc::downgrade(line));
            let (subject, stopped) = (subject.clone(), Arc::clone(&stopped));
            let own = Waiting::default();
            waiting.push(Arc::clone(&own));
            let watch = move || {
                while !stopped.load(Ordering::Relaxed) {
                    set(&own, Some(Instant::now()));
                    // Over the one that never computes, more than a sign of life is asked for.
                    let answer = match line.as_ref().and_then(Weak::upgrade) {
                        Some(line) => line.pulse(),
                        None => session.ping(),
                    };
                    set(&own, None);
                    if answer.is_err() {
                        if !stopped.load(Ordering::Relaxed) {
                            subject.silent();
                        }
                        break;
                    }
                    thread::sleep(PAUSE);
                }
            };
            thread::Builder::new().name("session".into()).spawn(watch)?;
        }
        let look = move || {
            while !stopped.load(Ordering::Relaxed) {
                let longest = waiting.iter().filter_map(since).min();
                if longest.is_some_and(|since| since.elapsed() > deadline) {
                    let seconds = deadline.as_secs_f64();
                    subject.lose(&format!("it has not got on for {seconds} s"));
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
