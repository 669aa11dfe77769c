//! JSON Lines, JSON arrays, and JSON objects that hold one array of rows; lines of text.

use std::{
    io::{BufRead, BufReader, Read},
    iter,
    path::Path,
    sync::Arc,
};

use minijinja::{Value, value::ValueKind};

use super::{
    BOM, cannot_read, open,
    rows::{Columns, FileRows, RawRow},
    value::parse,
};
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

/// Rows of a JSON or JSONL file; an array is recognised under either name. A document is held in memory.
pub(super) fn rows(path: &Arc<Path>, extension: Extension) -> Result<FileRows, DataError> {
    let mut reader = BufReader::new(open(path)?);
    let first = first_byte(&mut reader).map_err(|source| cannot_read(path, source))?;
    match (first, extension) {
        (None, _) => Ok(Box::new(iter::empty())),
        (Some(b'['), _) => document(path),
        (Some(_), Extension::Lines) => Ok(Box::new(line_rows(path)?)),
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

fn first_line_is_a_value(path: &Arc<Path>) -> Result<bool, DataError> {
    let first = lines(path)?.next().transpose()?;
    Ok(first.is_some_and(|(_, line)| serde_json::from_str::<serde::de::IgnoredAny>(&line).is_ok()))
}

/// A `.json` file whose first line is complete: JSONL, or a document written in one line.
fn lines_or_document(path: &Arc<Path>) -> Result<FileRows, DataError> {
    let is_one_line = lines(path)?.take(2).count() == 1;
    let row = is_one_line.then(|| document_value(path)).transpose()?;
    match row.as_ref().and_then(wrapped_rows) {
        Some(rows) => Ok(elements(path, &rows)),
        None => Ok(Box::new(line_rows(path)?)),
    }
}

/// Rows of JSONL.
fn line_rows(
    path: &Arc<Path>,
) -> Result<impl Iterator<Item = Result<RawRow, DataError>> + use<>, DataError> {
    let (path, lines) = (path.clone(), lines(path)?);
    Ok(lines.map(move |line| {
        let (number, mut text) = line?;
        // The parser would report a row that ends too early at the end of the white space.
        text.truncate(text.trim_ascii_end().len());
        Ok(RawRow {
            bytes: text.len(),
            columns: Columns::Json(text),
            location: Location::new(&path, FilePlace::Line(number)),
        })
    }))
}

/// Lines as rows with one column of text.
pub(super) fn text_lines(path: &Path, column: &str) -> Result<Vec<Row>, DataError> {
    let path = path.into();
    let rows = lines(&path)?.map(|line| {
        let (number, text) = line?;
        let location = Location::new(&path, FilePlace::Line(number));
        Row::new(Value::from_pairs([(column, text)]), location)
    });
    rows.collect()
}

/// Numbers and text of the lines that are not blank, without line breaks.
fn lines(
    path: &Arc<Path>,
) -> Result<impl Iterator<Item = Result<(u64, String), DataError>> + use<>, DataError> {
    let mut reader = BufReader::new(open(path)?);
    let (path, mut numbers) = (path.clone(), 1..);
    let mut next = move || -> Result<Option<(u64, String)>, DataError> {
        for number in numbers.by_ref() {
            let mut line = Vec::new();
            let read = reader.read_until(b'\n', &mut line);
            if read.map_err(|source| cannot_read(&path, source))? == 0 {
                break;
            }
            if number == 1 && line.starts_with(BOM) {
                line.drain(..BOM.len());
            }
            let mut text = String::from_utf8(line).map_err(|error| DataError::InvalidUtf8 {
                path: path.to_path_buf(),
                line: number,
                byte: error.utf8_error().valid_up_to() + 1,
            })?;
            let end = text.strip_suffix('\n').unwrap_or(&text);
            text.truncate(end.strip_suffix('\r').unwrap_or(end).len());
            if !text.trim_ascii_end().is_empty() {
                return Ok(Some((number, text)));
            }
        }
        Ok(None)
    };
    Ok(iter::from_fn(move || next().transpose()))
}

/// The value of a line of JSONL.
pub(super) fn parse_line(line: &str, location: &Location) -> Result<Value, DataError> {
    parse(line).map_err(|error| malformed(&location.path, location.number(), &error))
}

/// Rows of a document: an array, or an object holding exactly one array of objects.
fn document(path: &Arc<Path>) -> Result<FileRows, DataError> {
    let value = document_value(path)?;
    let rows = if value.kind() == ValueKind::Seq {
        value
    } else {
        wrapped_rows(&value).unwrap_or_else(|| vec![value].into())
    };
    Ok(elements(path, &rows))
}

fn document_value(path: &Path) -> Result<Value, DataError> {
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
    parse(text).map_err(|error| malformed(path, 1, &error))
}

/// The rows of `{"data": [...]}`: one array and it holds objects. A lone chat is a row itself.
fn wrapped_rows(object: &Value) -> Option<Value> {
    let mut arrays = Vec::new();
    for key in object.try_iter().into_iter().flatten() {
        if matches!(key.as_str(), Some("messages" | "conversations")) {
            return None;
        }
        if let Ok(value) = object.get_item(&key)
            && value.kind() == ValueKind::Seq
        {
            arrays.push(value);
        }
    }
    let is_row = |row: Value| row.kind() == ValueKind::Map;
    let only = arrays.pop().filter(|_| arrays.is_empty());
    only.filter(|rows| rows.get_item_by_index(0).is_ok_and(is_row))
}

fn elements(path: &Arc<Path>, array: &Value) -> FileRows {
    let path = path.clone();
    let rows = (1..).zip(array.try_iter().into_iter().flatten());
    Box::new(rows.map(move |(number, columns)| {
        Ok(RawRow {
            columns: Columns::Parsed(columns),
            location: Location::new(&path, FilePlace::Row(number)),
            bytes: 0,
        })
    }))
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
