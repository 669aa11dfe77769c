use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

/// A loss in the file. SQLite turns a NaN into NULL, which would read as "no loss yet" where a task
/// has just diverged, so a NaN is kept as a word.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metric(pub(crate) f64);

const NOT_A_NUMBER: &str = "NaN";

impl ToSql for Metric {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(if self.0.is_nan() {
            NOT_A_NUMBER.into()
        } else {
            self.0.into()
        })
    }
}

impl FromSql for Metric {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Real(number) => Ok(Self(number)),
            ValueRef::Text(word) if word == NOT_A_NUMBER.as_bytes() => Ok(Self(f64::NAN)),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}
