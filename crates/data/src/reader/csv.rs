//! Comma- or tab-separated values with a header line; every cell is a string.

use std::{collections::HashSet, path::Path, sync::Arc};

use minijinja::Value;

use super::{cannot_read, open};
use crate::{
    error::DataError,
    row::{Location, Place, Row},
};

/// Rows of a file whose first line names the columns.
pub(super) fn read(path: &Path, delimiter: u8) -> Result<Vec<Row>, DataError> {
    let file: Arc<Path> = path.into();
    let mut reader = ::csv::ReaderBuilder::new()
        .delimiter(delimiter)
        .from_reader(open(path)?);
    let header = reader
        .headers()
        .map_err(|error| malformed(path, error))?
        .clone();
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
    for record in reader.records() {
        let record = record.map_err(|error| malformed(path, error))?;
        let line = record.position().map_or(0, ::csv::Position::line);
        let columns = Value::from_pairs(header.iter().zip(&record));
        rows.push(Row::new(
            columns,
            Location {
                path: file.clone(),
                place: Place::Line(line),
            },
        )?);
    }
    Ok(rows)
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
        } => {
            format!("{len} fields where the header has {expected_len}")
        }
        kind => format!("{kind:?}"),
    };
    DataError::Malformed {
        path: path.to_owned(),
        line,
        column: None,
        reason,
    }
}
