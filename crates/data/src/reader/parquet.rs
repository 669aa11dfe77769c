//! Apache Parquet. Columns of bytes, such as images, are left out.

use std::{
    fs::File,
    iter,
    panic::{self, AssertUnwindSafe},
    path::Path,
    sync::Arc,
};

use minijinja::Value;
use parquet::{
    basic::{ConvertedType, Type as PhysicalType},
    errors::{ParquetError, Result},
    file::reader::{FileReader, SerializedFileReader},
    record::{Field, reader::RowIter},
    schema::types::{Type, TypePtr},
};

use super::{
    cannot_read,
    compressed::refuse_special,
    progress::BytesRead,
    rows::{Columns, FileRows, RawRow},
};
use crate::{
    error::DataError,
    row::{FilePlace, Location},
    warning::Warning,
};

/// Rows of a file of `bytes` bytes, of which a page of each column is in memory.
pub(super) fn rows(
    path: &Arc<Path>,
    bytes: u64,
    warnings: &mut Vec<Warning>,
) -> Result<FileRows, DataError> {
    refuse_special(path)?;
    let file = File::open(path).map_err(|source| cannot_read(path, source))?;
    let reader = unless_it_panics(path, || SerializedFileReader::new(file))?;
    let count = reader.metadata().file_metadata().num_rows();
    let count = u64::try_from(count).unwrap_or(0).max(1);
    let mut rows = unless_it_panics(path, || text_and_numbers(path, reader, warnings))?;
    let (path, mut numbers, mut read) = (path.clone(), 1_u64.., BytesRead::default());
    let mut next = move || -> Result<Option<RawRow>, DataError> {
        let number = numbers.next().unwrap_or(u64::MAX);
        let columns = unless_it_panics(&path, || {
            let row = rows.next().transpose()?;
            Ok(row.map(|row| map(row.into_columns())))
        })?;
        read.set((bytes as f64 / count as f64 * number.min(count) as f64) as u64);
        Ok(columns.map(|columns| RawRow {
            columns: Columns::Parsed(columns),
            location: Location::new(&path, FilePlace::Row(number)),
            bytes: usize::try_from(bytes / count).unwrap_or(usize::MAX),
        }))
    };
    Ok(Box::new(iter::from_fn(move || next().transpose())))
}

/// The parser panics at some values that no writer writes, such as a date beyond the year 262,142.
fn unless_it_panics<T>(path: &Path, parse: impl FnOnce() -> Result<T>) -> Result<T, DataError> {
    let parsed = panic::catch_unwind(AssertUnwindSafe(parse));
    let damaged = |_| Err(ParquetError::General("it is damaged".to_owned()));
    parsed
        .unwrap_or_else(damaged)
        .map_err(|error| DataError::Parquet {
            path: path.to_owned(),
            reason: reason(error),
        })
}

/// The rows without columns of bytes.
fn text_and_numbers(
    path: &Path,
    reader: SerializedFileReader<File>,
    warnings: &mut Vec<Warning>,
) -> Result<RowIter<'static>> {
    let schema = reader.metadata().file_metadata().schema();
    let (kept, left_out): (Vec<TypePtr>, Vec<TypePtr>) = schema
        .get_fields()
        .iter()
        .cloned()
        .partition(is_text_or_number);
    if kept.is_empty() {
        return Err(ParquetError::General(
            "no column holds text or numbers".to_owned(),
        ));
    }
    if !left_out.is_empty() {
        let names: Vec<_> = left_out.iter().map(|column| column.name()).collect();
        warnings.push(Warning::new(
            path.display().to_string(),
            format!("its columns of bytes are left out: {}", names.join(", ")),
            "save them as text if rows need them",
        ));
    }
    let projection = Type::group_type_builder(schema.name())
        .with_fields(kept)
        .build()?;
    RowIter::from_file_into(Box::new(reader)).project(Some(projection))
}

/// The parser's message without the words that the error begins with.
fn reason(error: ParquetError) -> String {
    match error {
        ParquetError::General(reason) | ParquetError::EOF(reason) => reason,
        other => other.to_string(),
    }
}

/// True for a column whose values, also nested ones, are text, numbers, dates or times.
fn is_text_or_number(column: &TypePtr) -> bool {
    if column.is_group() {
        return column.get_fields().iter().all(is_text_or_number);
    }
    let converted = column.get_basic_info().converted_type();
    match column.get_physical_type() {
        PhysicalType::BYTE_ARRAY => matches!(
            converted,
            ConvertedType::UTF8
                | ConvertedType::ENUM
                | ConvertedType::JSON
                | ConvertedType::DECIMAL
        ),
        PhysicalType::FIXED_LEN_BYTE_ARRAY => converted == ConvertedType::DECIMAL,
        _ => true,
    }
}

fn map(columns: Vec<(String, Field)>) -> Value {
    Value::from_pairs(
        columns
            .into_iter()
            .map(|(name, field)| (name, value(field))),
    )
}

fn value(field: Field) -> Value {
    match field {
        Field::Null => Value::from(()),
        Field::Bool(value) => Value::from(value),
        Field::Byte(value) => Value::from(value),
        Field::Short(value) => Value::from(value),
        Field::Int(value) => Value::from(value),
        Field::Long(value) => Value::from(value),
        Field::UByte(value) => Value::from(value),
        Field::UShort(value) => Value::from(value),
        Field::UInt(value) => Value::from(value),
        Field::ULong(value) => Value::from(value),
        Field::Float16(value) => Value::from(f64::from(value)),
        Field::Float(value) => Value::from(f64::from(value)),
        Field::Double(value) => Value::from(value),
        Field::Str(value) => Value::from(value),
        Field::Group(row) => map(row.into_columns()),
        Field::ListInternal(list) => list.elements().iter().cloned().map(value).collect(),
        Field::MapInternal(map) => {
            let entries = map.entries().iter().cloned();
            Value::from_pairs(entries.map(|(key, field)| (value(key), value(field))))
        }
        // Dates, times and decimals as text.
        other => Value::from(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    use proptest::prelude::*;

    use super::super::{DataFile, Rows};
    use crate::{error::DataError, row::Row, warning::Warning};

    fn read(path: &Path, warnings: &mut Vec<Warning>) -> Result<Vec<Row>, DataError> {
        let files = [DataFile::find(path)?];
        let mut rows = Rows::of(&files, "");
        let read = rows.by_ref().map(|row| row?.parse()).collect();
        warnings.extend(rows.into_warnings());
        read
    }

    fn fixture(name: &str) -> PathBuf {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parquet");
        PathBuf::from(fixtures).join(name)
    }

    fn columns(rows: &[Row]) -> Vec<String> {
        rows.iter().map(|row| row.columns.to_string()).collect()
    }

    #[test]
    fn rows_are_those_that_pyarrow_reads() {
        for (file, expected, left_out) in [
            ("rows-snappy", "rows", true),
            ("rows-gzip", "rows", true),
            ("rows-none", "rows", true),
            ("chats", "chats", false),
        ] {
            let mut warnings = Vec::new();
            let rows = read(&fixture(&format!("{file}.parquet")), &mut warnings).unwrap();
            let expected = fixture(&format!("{expected}.jsonl"));
            let expected = read(&expected, &mut Vec::new()).unwrap();
            assert_eq!(columns(&rows), columns(&expected), "{file}");
            assert_eq!(
                rows[2].location.to_string().rsplit('/').next(),
                Some(&*format!("{file}.parquet: row 3"))
            );
            let said: Vec<_> = warnings.iter().map(|warning| &warning.message).collect();
            assert_eq!(said.len(), usize::from(left_out), "{said:?}");
            assert!(
                said.iter().all(|said| said.ends_with("left out: image")),
                "{said:?}"
            );
        }
    }

    #[test]
    fn files_that_cannot_be_read_say_why() {
        for (name, reason, hint) in [
            (
                "chats-zstd.parquet",
                "Disabled feature",
                "compression=\"snappy\"",
            ),
            ("images.parquet", "no column holds text", ""),
            ("empty.parquet", "has no rows", ""),
        ] {
            let error = read(&fixture(name), &mut Vec::new()).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
            let found = error.hint().unwrap_or_default();
            assert!(found.contains(hint), "{name}: {found}");
        }
    }

    proptest! {
        /// Whatever the parser does with them.
        #[test]
        fn damaged_files_are_refused(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            kept in 0.5..1.5f64,
            file in prop::sample::select(vec!["rows-snappy", "rows-gzip", "rows-none", "chats"]),
        ) {
            let mut bytes = fs::read(fixture(&format!("{file}.parquet"))).unwrap();
            for (at, value) in damage {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate((bytes.len() as f64 * kept) as usize);
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("a.parquet");
            fs::write(&path, bytes).unwrap();
            let _ = read(&path, &mut Vec::new());
        }
    }
}
