//! Reads `validation`: a fraction of the rows, or the path of another file.

use std::{fmt, path::PathBuf};

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::Validation;

impl<'de> Deserialize<'de> for Validation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValidationVisitor)
    }
}

struct ValidationVisitor;

impl Visitor<'_> for ValidationVisitor {
    type Value = Validation;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fraction of the rows such as 0.02, or the path of a file")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Validation, E> {
        Ok(Validation::Fraction(value as f64))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Validation, E> {
        Ok(Validation::Fraction(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Validation, E> {
        Ok(Validation::Fraction(value))
    }

    fn visit_str<E: Error>(self, path: &str) -> Result<Validation, E> {
        Ok(Validation::File(PathBuf::from(path)))
    }
}
