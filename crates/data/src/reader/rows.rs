use std::{
    fs,
    path::Path,
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use minijinja::Value;
use rayon::prelude::*;

use super::{
    cannot_read, csv, extension, json, parquet,
    progress::{BytesRead, Pass},
};
use crate::{
    error::DataError,
    row::{Location, Row},
    warning::Warning,
};

/// Most rows, and approximately most bytes, that are in memory at once.
const MOST_ROWS: usize = 1024;
const MOST_BYTES: usize = 8 << 20;

/// The rows of one file.
pub(super) type FileRows = Box<dyn Iterator<Item = Result<RawRow, DataError>>>;

/// A row that may have to be parsed.
#[derive(Debug)]
pub(crate) struct RawRow {
    pub(super) columns: Columns,
    pub(crate) location: Location,
    /// Approximate size.
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) enum Columns {
    Json(String),
    Parsed(Value),
}

impl RawRow {
    pub(crate) fn parse(self) -> Result<Row, DataError> {
        let columns = match self.columns {
            Columns::Json(text) => json::parse_line(&text, &self.location)?,
            Columns::Parsed(columns) => columns,
        };
        Row::new(columns, self.location)
    }
}

/// A file that every pass must find unchanged.
#[derive(Debug)]
pub(crate) struct DataFile {
    path: Arc<Path>,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl DataFile {
    pub(crate) fn find(path: &Path) -> Result<Self, DataError> {
        let metadata = fs::metadata(path).map_err(|source| cannot_read(path, source))?;
        if metadata.is_dir() {
            return Err(DataError::NotAFile(path.to_owned()));
        }
        Ok(Self {
            path: path.into(),
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_unchanged(&self) -> bool {
        let now = Self::find(&self.path);
        now.is_ok_and(|now| (now.bytes, now.modified) == (self.bytes, self.modified))
    }

    fn check(&self) -> Result<(), DataError> {
        let changed = || DataError::Changed(self.path.to_path_buf());
        self.is_unchanged().then_some(()).ok_or_else(changed)
    }

    fn open(&self, warnings: &mut Vec<Warning>) -> Result<FileRows, DataError> {
        self.check()?;
        match extension(&self.path).as_deref() {
            Some("jsonl" | "ndjson") => json::rows(&self.path, json::Extension::Lines),
            Some("json") => json::rows(&self.path, json::Extension::Json),
            Some("csv") => csv::rows(&self.path, b',', warnings),
            Some("tsv") => csv::rows(&self.path, b'\t', warnings),
            Some("parquet") => parquet::rows(&self.path, self.bytes, warnings),
            _ => Err(DataError::UnknownExtension(self.path.to_path_buf())),
        }
    }
}

/// The rows of files, one file after another, at least one of each. Nothing follows an error.
pub(crate) struct Rows<'a> {
    files: slice::Iter<'a, DataFile>,
    open: Option<(&'a DataFile, FileRows)>,
    /// True if the open file has had no row.
    is_empty: bool,
    warnings: Vec<Warning>,
    /// Files that were read.
    read: BytesRead,
    _pass: Pass,
}

impl<'a> Rows<'a> {
    /// For a pass called `what`.
    pub(crate) fn of(files: &'a [DataFile], what: &'static str) -> Self {
        Self {
            files: files.iter(),
            open: None,
            is_empty: true,
            warnings: Vec::new(),
            read: BytesRead::default(),
            _pass: Pass::begin(what, files.iter().map(|file| file.bytes).sum()),
        }
    }

    /// Warnings about the files.
    pub(crate) fn into_warnings(self) -> Vec<Warning> {
        self.warnings
    }

    fn read(&mut self) -> Result<Option<RawRow>, DataError> {
        loop {
            if let Some((file, rows)) = &mut self.open {
                let file = *file;
                if let Some(row) = rows.next() {
                    self.is_empty = false;
                    return row.map(Some);
                }
                self.open = None;
                if self.is_empty {
                    return Err(DataError::Empty(file.path.to_path_buf()));
                }
                file.check()?;
                self.read.add(file.bytes);
            }
            let Some(file) = self.files.next() else {
                return Ok(None);
            };
            self.open = Some((file, file.open(&mut self.warnings)?));
            self.is_empty = true;
        }
    }
}

impl Iterator for Rows<'_> {
    type Item = Result<RawRow, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.read();
        if row.is_err() {
            (self.files, self.open) = (slice::Iter::default(), None);
        }
        row.transpose()
    }
}

/// A flag that is never set.
pub(crate) static NEVER: AtomicBool = AtomicBool::new(false);

/// Parses rows and does `work` on them in parallel, then gives the results to `take` in the order of the rows.
///
/// # Errors
///
/// The first error in this order, and [`DataError::Stopped`] at the next row once `stop` is set.
pub(crate) fn for_each<T: Send>(
    mut rows: impl Iterator<Item = Result<RawRow, DataError>>,
    stop: &AtomicBool,
    work: impl Fn(Row) -> Result<T, DataError> + Sync,
    mut take: impl FnMut(T) -> Result<(), DataError>,
) -> Result<(), DataError> {
    loop {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < MOST_ROWS
            && bytes < MOST_BYTES
            && let Some(row) = rows.next()
        {
            bytes += row.as_ref().map_or(0, |row| row.bytes);
            batch.push(row);
        }
        if batch.is_empty() {
            return Ok(());
        }
        let work = |row: Result<RawRow, DataError>| {
            if stop.load(Ordering::Relaxed) {
                return Err(DataError::Stopped);
            }
            row?.parse().and_then(&work)
        };
        let done: Vec<_> = batch.into_par_iter().map(work).collect();
        for result in done {
            take(result?)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::{DataFile, MOST_BYTES, MOST_ROWS, NEVER, RawRow, Rows, for_each};
    use crate::{
        error::DataError,
        row::{FilePlace, Location},
    };

    #[test]
    fn rows_are_read_in_parts() {
        for (bytes, most) in [(0, MOST_ROWS), (MOST_BYTES / 2, 2)] {
            let (held, longest) = (Cell::new(0), Cell::new(0));
            let rows = (0..5000).map(|number| {
                held.set(held.get() + 1);
                longest.set(longest.get().max(held.get()));
                Ok(RawRow {
                    columns: super::Columns::Json(format!("{{\"text\":\"{number}\"}}")),
                    location: Location::new(
                        &std::path::Path::new("a").into(),
                        FilePlace::Row(number),
                    ),
                    bytes,
                })
            });
            let mut expected = 0..5000;
            let taken = for_each(rows, &NEVER, Ok, |row| {
                held.set(held.get() - 1);
                assert_eq!(expected.next(), Some(row.location.number()));
                Ok(())
            });
            taken.unwrap();
            assert_eq!((longest.get(), expected.next()), (most, None));
        }
    }
    #[test]
    fn a_stop_ends_a_pass() {
        let stop = AtomicBool::new(false);
        let read = Cell::new(0);
        let rows = (0..u64::MAX).map(|number| {
            read.set(read.get() + 1);
            Ok(RawRow {
                columns: super::Columns::Json("{}".to_owned()),
                location: Location::new(&std::path::Path::new("a").into(), FilePlace::Row(number)),
                bytes: 0,
            })
        });
        let taken = for_each(rows.take(5 * MOST_ROWS), &stop, Ok, |row| {
            let is_last = row.location.number() + 1 == 2 * MOST_ROWS as u64;
            stop.store(is_last, Ordering::Relaxed);
            Ok(())
        });
        assert!(matches!(taken, Err(DataError::Stopped)), "{taken:?}");
        assert_eq!(read.get(), 3 * MOST_ROWS);
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_refused_at_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.jsonl");
        let row = "{\"text\":\"a\"}\n";
        std::fs::write(&path, row.repeat(2)).unwrap();
        let files = [DataFile::find(&path).unwrap()];
        let mut rows = Rows::of(&files, "");
        assert!(rows.next().is_some_and(|row| row.is_ok()));
        std::fs::write(&path, row.repeat(3)).unwrap();
        let last = rows.last();
        assert!(matches!(last, Some(Err(DataError::Changed(_)))), "{last:?}");
    }

    /// Batches are bounded by it.
    #[test]
    fn rows_say_how_large_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let text = "x".repeat(1000);
        for (name, content) in [
            ("a.jsonl", format!("{{\"text\":\"{text}\"}}\n").repeat(3)),
            (
                "a.csv",
                format!("text,id\n{}", format!("{text},1\n").repeat(3)),
            ),
        ] {
            let path = directory.path().join(name);
            std::fs::write(&path, content).unwrap();
            let files = [DataFile::find(&path).unwrap()];
            let sizes: Vec<usize> = Rows::of(&files, "").map(|row| row.unwrap().bytes).collect();
            assert_eq!(sizes.len(), 3, "{name}");
            let is_near = |size: &usize| (1000..1100).contains(size);
            assert!(sizes.iter().all(is_near), "{name}: {sizes:?}");
        }
    }
}
