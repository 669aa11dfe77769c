//! Checks that the write-ahead log beside the file still holds every accepted task.
//!
//! SQLite reads a log up to the first frame with a wrong checksum: after a power cut that is the end of
//! the committed part. Damage in the middle looks the same, and everything after it would be lost
//! silently. The frames that follow tell the two apart: each commit is on the disk before the next one
//! begins, and checksums are chained, so a bad frame with two commits chained behind it is not the end
//! of the log. The rest of an interrupted transaction has at most one commit.
//!
//! Damage in the last one or two transactions cannot be told from a power cut.
//!
//! Format: <https://www.sqlite.org/fileformat2.html#the_write_ahead_log>.

use std::{fs, io::ErrorKind, path::Path, thread, time::Duration};

use super::{QueueError, Result};

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const MAGIC: u32 = 0x377f_0682;
const SMALLEST_PAGE: usize = 512;

/// A frame that is being written while it is read is whole at a later attempt.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(25);

/// Refuses a log that has commits behind a damaged frame. A missing log is valid.
pub(super) fn inspect(path: &Path) -> Result<()> {
    let mut previous = None;
    for attempt in 0..ATTEMPTS {
        let log = match fs::read(path) {
            Ok(log) => log,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(QueueError::io("read", path, source)),
        };
        let Some(at) = damage(&log) else {
            return Ok(());
        };
        if attempt > 0 && previous != Some(at) {
            // Another process is writing.
            return Ok(());
        }
        previous = Some(at);
        thread::sleep(PAUSE);
    }
    let at = previous.unwrap_or_default();
    let problem = format!("commits follow a damaged frame at byte {at}");
    Err(QueueError::corrupt(path, problem))
}

/// A running checksum of SQLite's logs.
type Sum = (u32, u32);

#[derive(Debug)]
struct Frame<'a> {
    at: usize,
    bytes: &'a [u8],
}

impl Frame<'_> {
    fn is_commit(&self) -> bool {
        word(self.bytes, 4) != 0
    }

    /// The checksum in the frame's header.
    fn stored(&self) -> Sum {
        (word(self.bytes, 16), word(self.bytes, 20))
    }

    /// True if the frame belongs to this log and continues the chain of checksums.
    fn follows(&self, salts: &[u8], big_endian: bool, before: Sum) -> bool {
        let (page, data) = (&self.bytes[..8], &self.bytes[FRAME_HEADER..]);
        let sum = add(add(before, page, big_endian), data, big_endian);
        self.bytes[8..16] == *salts && sum == self.stored()
    }
}

/// Offset of the first damaged frame, if commits follow it.
fn damage(log: &[u8]) -> Option<usize> {
    if log.len() < HEADER + FRAME_HEADER + SMALLEST_PAGE {
        return None;
    }
    let (magic, page) = (word(log, 0), word(log, 8) as usize);
    let big_endian = magic & 1 == 1;
    let stored = (word(log, 24), word(log, 28));
    // The header is on the disk before the first frame is written.
    if magic & !1 != MAGIC || page < SMALLEST_PAGE || add((0, 0), &log[..24], big_endian) != stored
    {
        return Some(0);
    }
    let salts = &log[16..24];
    let length = FRAME_HEADER + page;
    let mut frames = log[HEADER..]
        .chunks_exact(length)
        .enumerate()
        .map(|(index, bytes)| Frame {
            at: HEADER + index * length,
            bytes,
        });
    let mut sum = stored;
    let bad = frames.find(|frame| {
        let good = frame.follows(salts, big_endian, sum);
        sum = frame.stored();
        !good
    })?;
    let mut commits = u32::from(bad.is_commit());
    for frame in frames {
        if !frame.follows(salts, big_endian, sum) {
            commits = 0;
        }
        sum = frame.stored();
        commits += u32::from(frame.is_commit());
        if commits > 1 {
            return Some(bad.at);
        }
    }
    None
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |word| u32::from_be_bytes(*word))
}

/// s₀ += x₂ᵢ + s₁, s₁ += x₂ᵢ₊₁ + s₀, over words in the byte order of the log's magic number.
fn add((mut first, mut second): Sum, bytes: &[u8], big_endian: bool) -> Sum {
    let number = |word: [u8; 4]| {
        if big_endian {
            u32::from_be_bytes(word)
        } else {
            u32::from_le_bytes(word)
        }
    };
    for pair in bytes.as_chunks::<8>().0 {
        let [a, b, c, d, e, f, g, h] = *pair;
        first = first
            .wrapping_add(number([a, b, c, d]))
            .wrapping_add(second);
        second = second
            .wrapping_add(number([e, f, g, h]))
            .wrapping_add(first);
    }
    (first, second)
}
