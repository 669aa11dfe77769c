//! Files to rows, by extension; JSON and JSONL also by content.

mod compressed;
mod csv;
mod json;
mod parquet;
mod value;
mod zstandard;

use std::path::Path;

pub use compressed::Compression;
pub(crate) use compressed::{cannot_read, extension};

use compressed::open;

use crate::{error::DataError, row::Row, warning::Warning};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// The rows of a file, as [`read`]; or of a `.txt` file, whose lines have `column` alone.
pub(crate) fn read_prompts(
    path: &Path,
    column: &str,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Row>, DataError> {
    if extension(path).as_deref() != Some("txt") {
        return read(path, warnings);
    }
    let rows = json::text_lines(path, column)?;
    if rows.is_empty() {
        return Err(DataError::Empty(path.to_owned()));
    }
    Ok(rows)
}

/// All rows of a file, at least one; appends to `warnings`.
pub(crate) fn read(path: &Path, warnings: &mut Vec<Warning>) -> Result<Vec<Row>, DataError> {
    let rows = match extension(path).as_deref() {
        Some("jsonl" | "ndjson") => json::read(path, json::Extension::Lines)?,
        Some("json") => json::read(path, json::Extension::Json)?,
        Some("csv") => csv::read(path, b',', warnings)?,
        Some("tsv") => csv::read(path, b'\t', warnings)?,
        Some("parquet") => parquet::read(path, warnings)?,
        _ => return Err(DataError::UnknownExtension(path.to_owned())),
    };
    if rows.is_empty() {
        return Err(DataError::Empty(path.to_owned()));
    }
    Ok(rows)
}
