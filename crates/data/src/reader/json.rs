//! JSON Lines, JSON arrays, and JSON objects that hold one array of rows; lines of text.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    sync::Arc,
};

use minijinja::{Value, value::ValueKind};

use super::{BOM, cannot_read, open, value::parse};
use crate::{
    error::DataError,
    row::{FilePlace, Location, Row},
};

/// Kind of file, by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extension {
    /// One object a line.
    Lines,
    /// A document or, as is common, lines.
    Json,
}

/// Rows of a JSON or JSONL file; an array is recognised under either name.
pub(super) fn read(path: &Path, extension: Extension) -> Result<Vec<Row>, DataError> {
    let mut reader = BufReader::new(open(path)?);
    let first = first_byte(&mut reader).map_err(|source| cannot_read(path, source))?;
    match (first, extension) {
        (None, _) => Ok(Vec::new()),
        (Some(b'['), _) => document(path),
        (Some(_), Extension::Lines) => lines(path),
        (Some(_), Extension::Json) => {
            // A document of one object spans lines; in JSONL the first line is one.
            if first_line_is_a_value(path)? {
                lines_or_document(path)
            } else {
                document(path)
            }
        }
    }
}

/// The first byte that is neither white space nor a byte order mark.
fn first_byte(reader: &mut impl BufRead) -> std::io::Result<Option<u8>> {
    let mut start = true;
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(None);
        }
        let bom = buffer.strip_prefix(BOM).filter(|_| start);
        start = false;
        let mut bytes = bom.unwrap_or(buffer).iter();
        if let Some(byte) = bytes.find(|byte| !byte.is_ascii_whitespace()) {
            return Ok(Some(*byte));
        }
        let read = buffer.len();
        reader.consume(read);
    }
}

fn first_line_is_a_value(path: &Path) -> Result<bool, DataError> {
    let mut answer = false;
    for_each_line(path, |_, line| {
        answer = serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok();
        Ok(false)
    })?;
    Ok(answer)
}

/// A `.json` file whose first line is complete: JSONL, or a document written in one line.
fn lines_or_document(path: &Path) -> Result<Vec<Row>, DataError> {
    let rows = lines(path)?;
    match rows.as_slice() {
        [row] => Ok(wrapped_rows(path, &row.columns)?.unwrap_or(rows)),
        _ => Ok(rows),
    }
}

/// Rows of JSONL; blank lines are skipped.
fn lines(path: &Path) -> Result<Vec<Row>, DataError> {
    let file: Arc<Path> = path.into();
    let mut rows = Vec::new();
    for_each_line(path, |number, line| {
        let columns = parse(line).map_err(|error| malformed(path, number, &error))?;
        let location = Location::new(&file, FilePlace::Line(number));
        rows.push(Row::new(columns, location)?);
        Ok(true)
    })?;
    Ok(rows)
}

/// Lines as rows with one column of text; blank lines are skipped.
pub(super) fn text_lines(path: &Path, column: &str) -> Result<Vec<Row>, DataError> {
    let file: Arc<Path> = path.into();
    let mut rows = Vec::new();
    for_each_line(path, |number, line| {
        let location = Location::new(&file, FilePlace::Line(number));
        rows.push(Row::new(Value::from_pairs([(column, line)]), location)?);
        Ok(true)
    })?;
    Ok(rows)
}

/// Calls `visit` with number and text of every line that is not blank until it returns false.
fn for_each_line(
    path: &Path,
    mut visit: impl FnMut(u64, &str) -> Result<bool, DataError>,
) -> Result<(), DataError> {
    let mut reader = BufReader::new(open(path)?);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = reader
            .read_until(b'\n', &mut line)
            .map_err(|source| cannot_read(path, source))?;
        if read == 0 {
            break;
        }
        let bytes = if number == 1 {
            line.strip_prefix(BOM).unwrap_or(&line)
        } else {
            &line
        };
        // The parser would report a row that ends too early at the start of the next line.
        let text = std::str::from_utf8(bytes).map_err(|error| DataError::InvalidUtf8 {
            path: path.to_owned(),
            line: number,
            byte: error.valid_up_to() + 1,
        })?;
        let text = text.trim_ascii_end();
        if !text.trim_ascii_start().is_empty() && !visit(number, text)? {
            break;
        }
    }
    Ok(())
}

/// Rows of a document: an array, or an object holding exactly one array of objects.
fn document(path: &Path) -> Result<Vec<Row>, DataError> {
    let mut bytes = Vec::new();
    open(path)?
        .read_to_end(&mut bytes)
        .map_err(|source| cannot_read(path, source))?;
    let bytes = bytes.strip_prefix(BOM).unwrap_or(&bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let valid = &bytes[..error.valid_up_to()];
        let mut lines = valid.split(|byte| *byte == b'\n');
        DataError::InvalidUtf8 {
            path: path.to_owned(),
            line: lines.clone().count() as u64,
            byte: lines.next_back().map_or(0, <[u8]>::len) + 1,
        }
    })?;
    let value = parse(text).map_err(|error| malformed(path, 1, &error))?;
    if value.kind() == ValueKind::Seq {
        return elements(path, &value);
    }
    if let Some(rows) = wrapped_rows(path, &value)? {
        return Ok(rows);
    }
    let location = Location::new(&path.into(), FilePlace::Row(1));
    Ok(vec![Row::new(value, location)?])
}

/// The rows of `{"data": [...]}`: one array and it holds objects. A lone chat is a row itself.
fn wrapped_rows(path: &Path, object: &Value) -> Result<Option<Vec<Row>>, DataError> {
    let mut arrays = Vec::new();
    for key in object.try_iter().into_iter().flatten() {
        if matches!(key.as_str(), Some("messages" | "conversations")) {
            return Ok(None);
        }
        if let Ok(value) = object.get_item(&key)
            && value.kind() == ValueKind::Seq
        {
            arrays.push(value);
        }
    }
    let is_row = |row: Value| row.kind() == ValueKind::Map;
    match arrays.as_slice() {
        [rows] if rows.get_item_by_index(0).is_ok_and(is_row) => elements(path, rows).map(Some),
        _ => Ok(None),
    }
}

fn elements(path: &Path, array: &Value) -> Result<Vec<Row>, DataError> {
    let file: Arc<Path> = path.into();
    (1..)
        .zip(array.try_iter().into_iter().flatten())
        .map(|(number, columns)| Row::new(columns, Location::new(&file, FilePlace::Row(number))))
        .collect()
}

/// A parser's error with its line counted from `first_line`.
fn malformed(path: &Path, first_line: u64, error: &serde_json::Error) -> DataError {
    let suffix = format!(" at line {} column {}", error.line(), error.column());
    let text = error.to_string();
    DataError::Malformed {
        path: path.to_owned(),
        line: first_line + (error.line().max(1) - 1) as u64,
        column: Some(error.column() as u64),
        reason: text.strip_suffix(&suffix).unwrap_or(&text).to_owned(),
    }
}
