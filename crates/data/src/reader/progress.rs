//! How far this process has read its data, for those who wait for it.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

static READING: Mutex<Reading> = Mutex::new(Reading {
    what: "",
    read: 0,
    all: 0,
});

/// The passes over data files that are under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The newest of them, such as `checking rows`.
    what: &'static str,
    /// Bytes that were read, before decompression.
    read: u64,
    /// Bytes of their files.
    all: u64,
}

/// The passes over data files that are under way, if there are any.
pub fn reading() -> Option<Reading> {
    let reading = *lock();
    (reading.all > 0).then_some(reading)
}

impl fmt::Display for Reading {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let (read, all) = (megabytes(self.read.min(self.all)), megabytes(self.all));
        write!(formatter, "{}: {read:.1} of {all:.1} MB", self.what)
    }
}

fn lock() -> MutexGuard<'static, Reading> {
    READING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pass over files, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pass(u64);

impl Pass {
    pub(crate) fn begin(what: &'static str, bytes: u64) -> Self {
        let mut reading = lock();
        reading.what = what;
        reading.all += bytes;
        Self(bytes)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        lock().all -= self.0;
    }
}

/// Bytes that were read, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct BytesRead(u64);

impl BytesRead {
    pub(crate) fn set(&mut self, bytes: u64) {
        let mut reading = lock();
        reading.read = reading.read - self.0 + bytes;
        self.0 = bytes;
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.set(self.0 + bytes);
    }
}

impl Drop for BytesRead {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::Reading;

    #[test]
    fn no_more_is_read_than_there_is() {
        let what = "checking rows";
        let reading = |read, all| Reading { what, read, all }.to_string();
        let half = "checking rows: 1.5 of 3000.0 MB";
        assert_eq!(reading(1_500_000, 3_000_000_000), half);
        assert_eq!(reading(9, 2_000_000), "checking rows: 0.0 of 2.0 MB");
        assert_eq!(
            reading(9_000_000, 2_000_000),
            "checking rows: 2.0 of 2.0 MB"
        );
    }
}
