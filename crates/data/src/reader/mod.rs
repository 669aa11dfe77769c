//! Files to rows, by extension; JSON and JSONL also by content. Rows are read one after another and never held here,
//! since data may exceed memory.

mod compressed;
mod csv;
mod json;
mod parquet;
mod progress;
mod rows;
mod value;
mod zstandard;

use std::path::Path;

pub use compressed::Compression;
pub(crate) use compressed::{cannot_read, extension};
pub(crate) use parquet::LEFT_OUT;
pub use progress::{Reading, reading};
pub(crate) use rows::{DataFile, NEVER, RawRow, Rows, for_each};

use compressed::open;
pub(crate) use value::parse as parse_json;

use crate::{error::DataError, row::Row, warning::Warning};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// The rows of a file, at least one. A `.txt` file has a row of every line, with `column` alone. Appends to `warnings`.
pub(crate) fn read_prompts(
    path: &Path,
    column: &str,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Row>, DataError> {
    if extension(path).as_deref() == Some("txt") {
        let rows = json::text_lines(path, column)?;
        let empty = || DataError::Empty(path.to_owned());
        return (!rows.is_empty()).then_some(rows).ok_or_else(empty);
    }
    let files = [DataFile::find(path)?];
    let mut rows = Rows::of(&files, "parsing rows");
    let parsed = rows.by_ref().map(|row| row?.parse()).collect();
    warnings.extend(rows.into_warnings());
    parsed
}
