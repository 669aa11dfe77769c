//! Apache Parquet. Columns of bytes, such as images, and fields of bytes in other columns are left out.

use std::{
    fs::File,
    iter,
    panic::{self, AssertUnwindSafe},
    path::Path,
    sync::Arc,
};

use minijinja::Value;
use parquet::{
    basic::{ConvertedType, LogicalType, TimeUnit, Type as PhysicalType},
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
    let (mut rows, types) = unless_it_panics(path, || text_and_numbers(path, reader, warnings))?;
    let (path, mut numbers, mut read) = (path.clone(), 1_u64.., BytesRead::default());
    let mut next = move || -> Result<Option<RawRow>, DataError> {
        let number = numbers.next().unwrap_or(u64::MAX);
        let columns = unless_it_panics(&path, || {
            let row = rows.next().transpose()?;
            Ok(row.map(|row| map(row.into_columns(), &types)))
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

/// The beginning of a warning that names what is left out.
pub(crate) const LEFT_OUT: &str = "its columns of bytes are left out: ";

/// The rows without columns of bytes, and the types of their columns.
fn text_and_numbers(
    path: &Path,
    reader: SerializedFileReader<File>,
    warnings: &mut Vec<Warning>,
) -> Result<(RowIter<'static>, Vec<TypePtr>)> {
    let schema = reader.metadata().file_metadata().schema();
    let (mut kept, mut left_out) = (Vec::new(), Vec::new());
    for column in schema.get_fields() {
        kept.extend(without_bytes(column, column.name(), &mut left_out)?);
    }
    let left_out = left_out.join(", ");
    if kept.is_empty() {
        return Err(ParquetError::General(format!(
            "no column holds text or numbers, but these hold bytes: {left_out}"
        )));
    }
    if !left_out.is_empty() {
        warnings.push(Warning::new(
            path.display().to_string(),
            format!("{LEFT_OUT}{left_out}"),
            "save them as text if rows need them",
        ));
    }
    let projection = Type::group_type_builder(schema.name())
        .with_fields(kept.clone())
        .build()?;
    let rows = RowIter::from_file_into(Box::new(reader)).project(Some(projection))?;
    Ok((rows, kept))
}

/// A column called `name` without its fields of bytes, whose names are added to `left_out`; `None` if nothing is left.
fn without_bytes(
    column: &TypePtr,
    name: &str,
    left_out: &mut Vec<String>,
) -> Result<Option<TypePtr>> {
    if is_text_or_number(column) {
        return Ok(Some(column.clone()));
    }
    let fields = if column.is_group() {
        column.get_fields()
    } else {
        &[]
    };
    let kept = match (column.get_basic_info().converted_type(), fields) {
        (ConvertedType::NONE, fields) if !fields.is_empty() => {
            let mut kept = Vec::new();
            for field in fields {
                let name = format!("{name}.{}", field.name());
                kept.extend(without_bytes(field, &name, left_out)?);
            }
            kept
        }
        // A list in its common form. Of another, the number of fields decides what the elements are.
        (ConvertedType::LIST, [repeated])
            if repeated.is_group() && repeated.get_fields().len() == 1 =>
        {
            let element = without_bytes(&repeated.get_fields()[0], name, left_out)?;
            let repeated = element.map(|element| with_fields(repeated, vec![element]));
            Vec::from_iter(repeated.transpose()?)
        }
        _ => {
            left_out.push(name.to_owned());
            Vec::new()
        }
    };
    let kept = (!kept.is_empty()).then(|| with_fields(column, kept));
    kept.transpose()
}

/// A group with other fields.
fn with_fields(group: &Type, fields: Vec<TypePtr>) -> Result<TypePtr> {
    let info = group.get_basic_info();
    Type::group_type_builder(group.name())
        .with_repetition(info.repetition())
        .with_converted_type(info.converted_type())
        .with_logical_type(info.logical_type_ref().cloned())
        .with_fields(fields)
        .build()
        .map(Arc::new)
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
        PhysicalType::FIXED_LEN_BYTE_ARRAY => {
            let logical = column.get_basic_info().logical_type_ref();
            converted == ConvertedType::DECIMAL || logical == Some(&LogicalType::Float16)
        }
        _ => true,
    }
}

/// An object of columns with these types.
fn map(columns: Vec<(String, Field)>, types: &[TypePtr]) -> Value {
    let columns = columns.into_iter().enumerate();
    Value::from_pairs(columns.map(|(at, (name, field))| (name, value(field, types.get(at)))))
}

/// The type of the elements of a list.
fn element(list: &TypePtr) -> &TypePtr {
    let fields = if list.is_group() {
        list.get_fields()
    } else {
        &[]
    };
    match (list.get_basic_info().converted_type(), fields) {
        (ConvertedType::LIST | ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE, [repeated]) => {
            match repeated.is_group().then(|| repeated.get_fields()) {
                Some([element]) => element,
                _ => repeated,
            }
        }
        // A repeated field.
        _ => list,
    }
}

/// A time of day or a date and a time in nanoseconds as text, which the parser gives as a number.
fn time(column: &Type, value: i64) -> Option<String> {
    let (micros, nanos) = (value.div_euclid(1000), value.rem_euclid(1000));
    match column.get_basic_info().logical_type_ref()? {
        LogicalType::Time(time) if time.unit == TimeUnit::NANOS => {
            Some(format!("{}{nanos:03}", Field::TimeMicros(micros)))
        }
        LogicalType::Timestamp(time) if time.unit == TimeUnit::NANOS => {
            let text = Field::TimestampMicros(micros).to_string();
            let (time, zone) = text.rsplit_once(' ')?;
            Some(format!("{time}{nanos:03} {zone}"))
        }
        _ => None,
    }
}

fn value(field: Field, column: Option<&TypePtr>) -> Value {
    let fields = column.filter(|column| column.is_group());
    let fields = fields.map_or(&[][..], |column| column.get_fields());
    match field {
        Field::Null => Value::from(()),
        Field::Bool(value) => Value::from(value),
        Field::Byte(value) => Value::from(value),
        Field::Short(value) => Value::from(value),
        Field::Int(value) => Value::from(value),
        Field::Long(value) => match column.and_then(|column| time(column, value)) {
            Some(text) => Value::from(text),
            None => Value::from(value),
        },
        Field::UByte(value) => Value::from(value),
        Field::UShort(value) => Value::from(value),
        Field::UInt(value) => Value::from(value),
        Field::ULong(value) => Value::from(value),
        Field::Float16(value) => Value::from(f64::from(value)),
        Field::Float(value) => Value::from(f64::from(value)),
        Field::Double(value) => Value::from(value),
        Field::Str(value) => Value::from(value),
        Field::Group(row) => map(row.into_columns(), fields),
        Field::ListInternal(list) => {
            let elements = list.elements().iter().cloned();
            let of = column.map(element);
            elements.map(|field| value(field, of)).collect()
        }
        Field::MapInternal(map) => {
            let entries = map.entries().iter().cloned();
            let of = fields.first().filter(|entry| entry.is_group());
            let of = of.map_or(&[][..], |entry| entry.get_fields());
            let entry = |(key, field)| (value(key, of.first()), value(field, of.get(1)));
            Value::from_pairs(entries.map(entry))
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

    use std::sync::Arc;

    use parquet::{
        data_type::{
            ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType, Int64Type,
        },
        file::writer::{SerializedFileWriter, SerializedRowGroupWriter},
        schema::parser::parse_message_type,
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

    /// Writes a column whose optional fields are all there, with one value a row.
    fn write<T: DataType>(group: &mut SerializedRowGroupWriter<'_, fs::File>, values: &[T::T]) {
        let mut column = group.next_column().unwrap().unwrap();
        let levels = vec![column.typed::<T>().get_descriptor().max_def_level(); values.len()];
        let starts = vec![0; values.len()];
        let typed = column.typed::<T>();
        typed
            .write_batch(values, Some(&levels), Some(&starts))
            .unwrap();
        column.close().unwrap();
    }

    #[test]
    fn times_in_nanoseconds_are_text_and_only_bytes_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.parquet");
        let schema = "message schema {
            optional int64 at (TIMESTAMP(NANOS,true));
            optional int64 time (TIME(NANOS,false));
            optional int64 number;
            optional fixed_len_byte_array(2) half (FLOAT16);
            optional group parts (LIST) {
                repeated group list {
                    optional group element {
                        optional int64 at (TIMESTAMP(NANOS,false));
                        optional binary image;
                    }
                }
            }
            optional binary sound;
        }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let file = fs::File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let at = [1_709_210_096_123_456_789, -1];
        write::<Int64Type>(&mut group, &at);
        write::<Int64Type>(&mut group, &[3_723_000_000_007, 0]);
        write::<Int64Type>(&mut group, &at);
        let half = [[0x00, 0x3e], [0x00, 0xc0]]
            .map(|bytes| FixedLenByteArray::from(ByteArray::from(bytes.to_vec())));
        write::<FixedLenByteArrayType>(&mut group, &half);
        write::<Int64Type>(&mut group, &at);
        let bytes = [vec![1, 255], vec![2]].map(ByteArray::from);
        write::<ByteArrayType>(&mut group, &bytes);
        write::<ByteArrayType>(&mut group, &bytes);
        group.close().unwrap();
        writer.close().unwrap();

        let mut warnings = Vec::new();
        let rows = read(&path, &mut warnings).unwrap();
        let times = [
            (
                "2024-02-29 12:34:56.123456789 +00:00",
                "01:02:03.000000007",
                at[0],
                "1.5",
            ),
            (
                "1969-12-31 23:59:59.999999999 +00:00",
                "00:00:00.000000000",
                at[1],
                "-2.0",
            ),
        ];
        let expected = times.map(|(at, time, number, half)| {
            format!(
                "{{'at': '{at}', 'time': '{time}', 'number': {number}, 'half': {half}, \
                 'parts': [{{'at': '{at}'}}]}}"
            )
        });
        assert_eq!(columns(&rows), expected);
        let said: Vec<_> = warnings.iter().map(|warning| &*warning.message).collect();
        assert_eq!(
            said,
            ["its columns of bytes are left out: parts.image, sound"]
        );

        // Neither name of a column is that of a format.
        let dataset = serde_json::json!({"path": [path], "validation": 0.0});
        let dataset = serde_json::from_value(dataset).unwrap();
        let error = crate::Dataset::load("a", &dataset, 0)
            .unwrap_err()
            .to_string();
        let end = "`half`, `parts`; its columns of bytes are left out: parts.image, sound";
        assert!(error.ends_with(end), "{error}");
    }

    #[test]
    fn files_that_cannot_be_read_say_why() {
        for (name, reason, hint) in [
            (
                "chats-zstd.parquet",
                "Disabled feature",
                "compression=\"snappy\"",
            ),
            ("images.parquet", "but these hold bytes: image", ""),
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
