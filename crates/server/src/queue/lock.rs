use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read, Seek, SeekFrom, Write},
    path::Path,
    process, thread,
    time::Duration,
};

use super::{QueueError, Result};

/// The file that a server locks in its run directory.
pub const LOCK_NAME: &str = "server.lock";

/// Other processes hold the lock only briefly, to check for a server or to carry out a request.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// True if a server holds a run directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// No server.
    Absent,
    /// A server runs.
    Alive {
        /// Its process, if readable: Windows does not let others read a locked file.
        pid: Option<u32>,
    },
}

/// The right to be the one server of a run directory.
///
/// A lock of the operating system on an open file: it ends with the process, however that ends. Nothing
/// needs cleaning up, and no process number can be mistaken for another process's.
#[derive(Debug)]
pub(super) struct ServerLock {
    _file: File,
}

impl ServerLock {
    /// Takes the lock; waits up to a second for it.
    pub(super) fn acquire(directory: &Path) -> Result<Self> {
        for _ in 1..TRIES {
            if let Some(lock) = Self::try_acquire(directory)? {
                return Ok(lock);
            }
            thread::sleep(PAUSE);
        }
        Self::try_acquire(directory)?.ok_or_else(|| QueueError::ServerRunning {
            directory: directory.to_owned(),
            pid: read_pid(&directory.join(LOCK_NAME)),
        })
    }

    /// Takes the lock if it is free now.
    pub(super) fn try_acquire(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(LOCK_NAME);
        let lock = || -> io::Result<Option<Self>> {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            writeln!(file, "{}", process::id())?;
            Ok(Some(Self { _file: file }))
        };
        lock().map_err(|source| QueueError::io("lock", &path, source))
    }
}

/// True if a server holds the directory.
pub(super) fn presence(directory: &Path) -> Result<Presence> {
    let path = directory.join(LOCK_NAME);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Presence::Absent),
        Err(source) => return Err(QueueError::io("read", &path, source)),
    };
    // Shared, so that two processes that check do not see each other.
    match file.try_lock_shared() {
        Ok(()) => Ok(Presence::Absent),
        Err(TryLockError::WouldBlock) => Ok(Presence::Alive {
            pid: read_pid(&path),
        }),
        Err(TryLockError::Error(source)) => Err(QueueError::io("lock", &path, source)),
    }
}

fn read_pid(path: &Path) -> Option<u32> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(20).read_to_string(&mut text))
        .ok()?;
    text.trim().parse().ok()
}
