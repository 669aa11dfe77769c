//! One row of a table, its columns and where it came from.

use std::{fmt, path::Path, sync::Arc};

use minijinja::{Value, value::ValueKind};

use crate::error::{DataError, RowError};

/// The column with the system message of a chat or an instruction.
pub(crate) const SYSTEM: &str = "system";

/// Place of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Path of the file.
    pub path: Arc<Path>,
    /// The place in it.
    pub place: FilePlace,
}

/// A place in a file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePlace {
    /// A line, in formats with a row a line.
    Line(u64),
    /// An element of a JSON array.
    Row(u64),
}

impl Location {
    pub(crate) fn new(path: &Arc<Path>, place: FilePlace) -> Self {
        let path = path.clone();
        Self { path, place }
    }

    /// The line or the element, from 1.
    pub fn number(&self) -> u64 {
        match self.place {
            FilePlace::Line(number) | FilePlace::Row(number) => number,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            FilePlace::Line(line) => write!(formatter, "{}:{line}", self.path.display()),
            FilePlace::Row(row) => write!(formatter, "{}: row {row}", self.path.display()),
        }
    }
}

/// A row: named columns in the order of the file.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// A map; readers make no other rows.
    pub(crate) columns: Value,
    pub(crate) location: Location,
}

impl Row {
    /// Takes `columns` as a row if it is a map.
    pub(crate) fn new(columns: Value, location: Location) -> Result<Self, DataError> {
        if columns.kind() == ValueKind::Map {
            Ok(Self { columns, location })
        } else {
            let problem = RowError::NotAnObject(describe(&columns));
            Err(DataError::Row { location, problem })
        }
    }

    /// The column's value, `None` if the row has no such column.
    pub(crate) fn get(&self, column: &str) -> Option<Value> {
        self.columns
            .get_item(&Value::from(column))
            .ok()
            .filter(|value| !value.is_undefined())
    }

    /// The column's value.
    pub(crate) fn require(&self, column: &str) -> Result<Value, RowError> {
        self.get(column).ok_or_else(|| RowError::MissingColumn {
            column: column.to_owned(),
            available: self.names(),
        })
    }

    /// The column's text.
    pub(crate) fn text(&self, column: &str) -> Result<Arc<str>, RowError> {
        let value = self.require(column)?;
        match value.to_str() {
            Some(text) => Ok(text),
            None => Err(wrong_type(column, "a string", &value)),
        }
    }

    /// The column's text, `None` if the column is missing or null.
    pub(crate) fn optional_text(&self, column: &str) -> Result<Option<Arc<str>>, RowError> {
        match self.get(column) {
            None => Ok(None),
            Some(value) if value.is_none() => Ok(None),
            Some(_) => self.text(column).map(Some),
        }
    }

    /// True if the column has text other than white space, or a list or an object that is not empty.
    pub(crate) fn has_content(&self, column: &str) -> bool {
        self.get(column).is_some_and(|value| match value.as_str() {
            Some(text) => !text.trim().is_empty(),
            None => value.len().is_some_and(|length| length > 0),
        })
    }

    /// The text of the column `system`, if it has any.
    pub(crate) fn system(&self) -> Result<Option<Arc<str>>, RowError> {
        let text = self.optional_text(SYSTEM)?;
        Ok(text.filter(|text| !text.trim().is_empty()))
    }

    /// Names of the columns.
    pub(crate) fn names(&self) -> Vec<String> {
        self.columns
            .try_iter()
            .map(|keys| keys.map(|key| key.to_string()).collect())
            .unwrap_or_default()
    }

    /// Adds the row's location to its error.
    pub(crate) fn error(&self, problem: RowError) -> DataError {
        DataError::Row {
            location: self.location.clone(),
            problem,
        }
    }
}

pub(crate) fn wrong_type(column: &str, expected: &'static str, found: &Value) -> RowError {
    RowError::WrongType {
        column: column.to_owned(),
        expected,
        found: describe(found),
    }
}

/// A value for a message, or its type if it may be long.
pub(crate) fn describe(value: &Value) -> String {
    let kind = match value.kind() {
        ValueKind::None => "null",
        ValueKind::Bool => return format!("the boolean {}", value.is_true()),
        ValueKind::Number => return format!("the number {value}"),
        ValueKind::String => "a string",
        ValueKind::Seq => "a list",
        ValueKind::Map => "an object",
        _ => "something else",
    };
    kind.to_owned()
}
