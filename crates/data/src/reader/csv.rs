//! Comma- or tab-separated values with a header line; every cell is a string.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader},
    path::Path,
    sync::Arc,
};

use minijinja::Value;

use super::{BOM, cannot_read, open};
use crate::{
    error::{DataError, QUOTE_HINT},
    row::{FilePlace, Location, Row},
    warning::Warning,
};

/// Rows of a file whose first line names the columns.
pub(super) fn read(
    path: &Path,
    delimiter: u8,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Row>, DataError> {
    let file: Arc<Path> = path.into();
    let mut reader = ::csv::ReaderBuilder::new()
        .delimiter(delimiter)
        .from_reader(open(path)?);
    let header = reader
        .headers()
        .map_err(|error| malformed(path, error))?
        .clone();
    check_quotes(path, delimiter, header.len(), warnings)?;
    let mut seen = HashSet::new();
    if let Some(name) = header.iter().find(|name| !seen.insert(*name)) {
        return Err(DataError::Malformed {
            path: path.to_owned(),
            line: 1,
            column: None,
            reason: format!("the header names column `{name}` twice"),
        });
    }
    let mut rows = Vec::new();
    let mut record = ::csv::StringRecord::new();
    while reader
        .read_record(&mut record)
        .map_err(|error| malformed(path, error))?
    {
        let line = record.position().map_or(0, ::csv::Position::line);
        let columns = Value::from_pairs(header.iter().zip(&record));
        let location = Location::new(&file, FilePlace::Line(line));
        rows.push(Row::new(columns, location)?);
    }
    Ok(rows)
}

/// State of the scan of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scan {
    FieldStart,
    Unquoted,
    Quoted,
    /// After a quote that ends the field, unless another one follows.
    Closed,
}

/// A field in quotes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Field {
    /// Line and column of the quote that opens it.
    opened: (u64, usize),
    /// Lines that it takes from end to end.
    lines: u64,
    /// Each of these has as many delimiters as the header, which has some.
    are_like_rows: bool,
}

impl Field {
    fn opened(opened: (u64, usize)) -> Self {
        Self {
            opened,
            lines: 0,
            are_like_rows: true,
        }
    }
}

/// Lines that look like rows by chance: a field may well have some.
const LINES_LIKE_ROWS: u64 = 3;

/// Refuses quotes that swallow lines unintentionally: the parser, as Python's, ends a field that
/// none closes with the file, and goes on with a field after its closing quote. Warns of fields that
/// seem to.
fn check_quotes(
    path: &Path,
    delimiter: u8,
    columns: usize,
    warnings: &mut Vec<Warning>,
) -> Result<(), DataError> {
    let mut reader = BufReader::new(open(path)?);
    let mut line = Vec::new();
    let mut state = Scan::FieldStart;
    let mut field = Field::opened((0, 0));
    let refuse = |(line, column): (u64, usize), reason: String| DataError::Quote {
        path: path.to_owned(),
        line,
        column: column as u64,
        reason,
    };
    for number in 1.. {
        line.clear();
        let read = reader
            .read_until(b'\n', &mut line)
            .map_err(|source| cannot_read(path, source))?;
        if read == 0 {
            if state != Scan::Quoted {
                return Ok(());
            }
            let (first, last) = (field.opened.0, number - 1);
            let reason = if first < last {
                format!("no quote closes this one: lines {first} to {last} would be one field")
            } else {
                "no quote closes this one".to_owned()
            };
            return Err(refuse(field.opened, reason));
        }
        let before = (state == Scan::Quoted).then_some(field);
        let has_bom = number == 1 && line.starts_with(BOM);
        let start = if has_bom { BOM.len() } else { 0 };
        for (at, byte) in line.iter().copied().enumerate().skip(start) {
            let is_end = byte == delimiter || matches!(byte, b'\r' | b'\n');
            state = match (state, byte) {
                (Scan::FieldStart, b'"') => {
                    field = Field::opened((number, at + 1));
                    Scan::Quoted
                }
                (Scan::Quoted, b'"') => Scan::Closed,
                (Scan::Quoted, _) | (Scan::Closed, b'"') => Scan::Quoted,
                _ if is_end => Scan::FieldStart,
                (Scan::Closed, _) if number > field.opened.0 => {
                    let reason = format!(
                        "lines {} to {number} would be one field, for the quote that closes this one \
                         is there, and has text behind it",
                        field.opened.0
                    );
                    return Err(refuse(field.opened, reason));
                }
                _ => Scan::Unquoted,
            };
        }
        let Some(before) = before else { continue };
        if state == Scan::Quoted && before == field {
            let fields = line.split(|byte| *byte == delimiter).count();
            field.lines += 1;
            field.are_like_rows &= fields == columns && columns > 1;
        } else if before.are_like_rows && before.lines >= LINES_LIKE_ROWS {
            let first = before.opened.0;
            let about = format!("{}:{first}", path.display());
            let message = format!(
                "a quote makes lines {first} to {number} one field, and each of them looks like a row"
            );
            warnings.push(Warning::new(about, message, QUOTE_HINT));
        }
    }
    Ok(())
}

fn malformed(path: &Path, error: ::csv::Error) -> DataError {
    let line = error.position().map_or(1, ::csv::Position::line);
    let reason = match error.into_kind() {
        ::csv::ErrorKind::Io(source) => return cannot_read(path, source),
        ::csv::ErrorKind::Utf8 { err, .. } => {
            return DataError::InvalidUtf8 {
                path: path.to_owned(),
                line,
                byte: err.valid_up_to() + 1,
            };
        }
        ::csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => format!("{len} fields where the header has {expected_len}"),
        kind => format!("{kind:?}"),
    };
    DataError::Malformed {
        path: path.to_owned(),
        line,
        column: None,
        reason,
    }
}
