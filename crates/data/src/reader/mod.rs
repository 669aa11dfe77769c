//! Files to rows, by extension; JSON and JSONL also by content.

mod csv;
mod json;
mod value;

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use crate::{error::DataError, row::Row, warning::Warning};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// All rows of a file, at least one; `warnings` gets what is odd about it.
pub(crate) fn read(path: &Path, warnings: &mut Vec<Warning>) -> Result<Vec<Row>, DataError> {
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    let rows = match extension.as_deref() {
        Some("jsonl" | "ndjson") => json::read(path, json::Extension::Lines)?,
        Some("json") => json::read(path, json::Extension::Json)?,
        Some("csv") => csv::read(path, b',', warnings)?,
        Some("tsv") => csv::read(path, b'\t', warnings)?,
        Some("parquet") => return Err(DataError::Parquet(path.to_owned())),
        _ => return Err(DataError::UnknownExtension(path.to_owned())),
    };
    if rows.is_empty() {
        return Err(DataError::Empty(path.to_owned()));
    }
    Ok(rows)
}

fn open(path: &Path) -> Result<File, DataError> {
    // Opening a pipe blocks until a writer comes, and files are read more than once.
    let metadata = fs::metadata(path).map_err(|source| cannot_read(path, source))?;
    if !metadata.is_file() {
        return Err(DataError::NotAFile(path.to_owned()));
    }
    File::open(path).map_err(|source| cannot_read(path, source))
}

pub(crate) fn cannot_read(path: &Path, source: io::Error) -> DataError {
    DataError::Io {
        path: path.to_owned(),
        source,
    }
}
