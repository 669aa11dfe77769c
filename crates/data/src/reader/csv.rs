//! Comma- or tab-separated values with a header line; every cell is a string.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader},
    iter,
    path::Path,
    sync::Arc,
};

use minijinja::Value;

use super::{
    BOM, cannot_read, open,
    rows::{Columns, FileRows, RawRow},
};
use crate::{
    error::{DataError, QUOTE_HINT},
    row::{FilePlace, Location},
    warning::Warning,
};

/// Rows of a file whose first line names the columns.
pub(super) fn rows(
    path: &Arc<Path>,
    delimiter: u8,
    warnings: &mut Vec<Warning>,
) -> Result<FileRows, DataError> {
    let mut reader = ::csv::ReaderBuilder::new()
        .delimiter(delimiter)
        .from_reader(open(path)?);
    let header = reader
        .headers()
        .map_err(|error| malformed(path, &[], error))?
        .clone();
    refuse_other_delimiter(path, delimiter, &header)?;
    let lines = check_quotes(path, delimiter, header.len(), warnings)?;
    let mut seen = HashSet::new();
    if let Some(name) = header.iter().find(|name| !seen.insert(*name)) {
        return Err(DataError::Malformed {
            path: path.to_path_buf(),
            line: lines.first().copied().unwrap_or(1),
            column: None,
            reason: format!("the header names column `{name}` twice"),
        });
    }
    let path = path.clone();
    let mut next = move || -> Result<Option<RawRow>, DataError> {
        let mut record = ::csv::StringRecord::new();
        let is_there = reader.read_record(&mut record);
        if !is_there.map_err(|error| malformed(&path, &lines, error))? {
            return Ok(None);
        }
        let line = record.position().map_or(0, |at| line_of(at, &lines));
        Ok(Some(RawRow {
            columns: Columns::Parsed(Value::from_pairs(header.iter().zip(&record))),
            location: Location::new(&path, FilePlace::Line(line)),
            bytes: record.as_slice().len(),
        }))
    };
    Ok(Box::new(iter::from_fn(move || next().transpose())))
}

/// Characters that tables are separated by.
const DELIMITERS: [u8; 4] = *b",;\t|";

/// Refuses a header of one column with another delimiter in it, before its rows fail in other words.
fn refuse_other_delimiter(
    path: &Path,
    delimiter: u8,
    header: &::csv::StringRecord,
) -> Result<(), DataError> {
    let mut columns = header.iter();
    let (Some(name), None) = (columns.next(), columns.next()) else {
        return Ok(());
    };
    let is_in = |other: &u8| *other != delimiter && name.as_bytes().contains(other);
    match DELIMITERS.into_iter().find(is_in) {
        None => Ok(()),
        Some(found) => Err(DataError::Delimiter {
            path: path.to_owned(),
            header: name.to_owned(),
            found: char::from(found),
            expected: char::from(delimiter),
        }),
    }
}

/// The line where a record begins. The parser's own count is too low after `\r\n` and empty lines, which it counts to
/// the next record.
fn line_of(position: &::csv::Position, lines: &[u64]) -> u64 {
    let record = usize::try_from(position.record()).unwrap_or(usize::MAX);
    lines.get(record).copied().unwrap_or(position.line())
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

/// A field is suspicious from this many lines on that look like rows; fewer may be chance.
const LINES_LIKE_ROWS: u64 = 3;

/// Refuses quotes that span lines unintentionally: like Python's, the parser ends an unclosed field at the end of the
/// file, and continues a field after its closing quote. Warns of suspicious fields. Returns the line where each
/// record begins, the header included.
fn check_quotes(
    path: &Path,
    delimiter: u8,
    columns: usize,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<u64>, DataError> {
    let mut reader = BufReader::new(open(path)?);
    let mut line = Vec::new();
    let (mut begins, mut is_between) = (Vec::new(), true);
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
                return Ok(begins);
            }
            let (first, last) = (field.opened.0, number - 1);
            let reason = if first < last {
                format!("this quote is not closed: lines {first} to {last} would be one field")
            } else {
                "this quote is not closed".to_owned()
            };
            return Err(refuse(field.opened, reason));
        }
        let before = (state == Scan::Quoted).then_some(field);
        let has_bom = number == 1 && line.starts_with(BOM);
        let start = if has_bom { BOM.len() } else { 0 };
        for (at, byte) in line.iter().copied().enumerate().skip(start) {
            let is_line_end = matches!(byte, b'\r' | b'\n');
            let is_end = byte == delimiter || is_line_end;
            if is_between && !is_line_end {
                begins.push(number);
            }
            is_between = is_line_end && state != Scan::Quoted;
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
                        "lines {} to {number} would be one field, since text follows the quote that \
                         closes this one",
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
    Ok(begins)
}

fn malformed(path: &Path, lines: &[u64], error: ::csv::Error) -> DataError {
    let line = error.position().map_or(1, |at| line_of(at, lines));
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
        } => format!("{len} fields, but the header has {expected_len}"),
        kind => format!("{kind:?}"),
    };
    DataError::Malformed {
        path: path.to_owned(),
        line,
        column: None,
        reason,
    }
}
