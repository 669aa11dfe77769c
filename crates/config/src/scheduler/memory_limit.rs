use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{ParseError, alternatives::NumberOrText};

/// Units of a size. If two write a size equally short, the first is used.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Memory of a device that a run may use, written `0.9` or `20GiB`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemoryLimit {
    /// Fraction of the device's memory; above 0, at most 1.
    Fraction(f64),
    /// Bytes; above 0.
    Bytes(u64),
}

impl MemoryLimit {
    /// The limit in bytes on a device with `device_bytes`, at most `device_bytes`.
    pub fn bytes(self, device_bytes: u64) -> u64 {
        match self {
            Self::Fraction(fraction) => ((device_bytes as f64 * fraction) as u64).min(device_bytes),
            Self::Bytes(bytes) => bytes.min(device_bytes),
        }
    }
}

/// Bytes of a written size. Units are read in any case, and may stand apart.
fn parse_size(text: &str) -> Option<u64> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let end = text.find(|c| !is_number(c))?;
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start();
    let (_, unit) = UNITS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(*unit);
    }
    let bytes = number.parse::<f64>().ok()? * *unit as f64;
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}

impl FromStr for MemoryLimit {
    type Err = ParseError;

    /// Reads a size; a fraction is a number, not a text.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_size(text.trim()).map(Self::Bytes).ok_or_else(|| {
            ParseError(format!(
                "`{text}` is not a size: expected a number and a unit, such as 20GiB or 1.5TB; write a \
                 fraction without quotes, such as 0.9"
            ))
        })
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Fraction(fraction) => write!(f, "{fraction}"),
            Self::Bytes(bytes) => {
                let exact = UNITS.iter().filter(|(_, unit)| bytes % unit == 0);
                let (name, unit) = exact
                    .min_by_key(|(_, unit)| bytes / unit)
                    .unwrap_or(&("B", 1));
                write!(f, "{}{name}", bytes / unit)
            }
        }
    }
}

impl Serialize for MemoryLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fraction(fraction) => serializer.serialize_f64(*fraction),
            Self::Bytes(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for MemoryLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText {
            expecting: "a fraction of the device's memory such as 0.9, or a size such as 20GiB",
            number: Self::Fraction,
            text: str::parse,
        })
    }
}

impl JsonSchema for MemoryLimit {
    fn schema_name() -> Cow<'static, str> {
        "MemoryLimit".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                {"type": "string", "pattern": "^ *[0-9.]+ *([KMGTkmgt][Ii]?)?[Bb] *$"},
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryLimit;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, written) in [
            ("20GiB", 20 << 30, "20GiB"),
            ("20 gb", 20_000_000_000, "20GB"),
            ("1.5TiB", 3 << 39, "1536GiB"),
            (" 2048KiB ", 2 << 20, "2MiB"),
            ("1001B", 1001, "1001B"),
            ("0GiB", 0, "0TiB"),
            (".5kb", 500, "500B"),
            ("18446744073709551615B", u64::MAX, "18446744073709551615B"),
        ] {
            let limit: MemoryLimit = text.parse().unwrap();
            assert_eq!(limit, MemoryLimit::Bytes(bytes), "{text}");
            assert_eq!(limit.to_string(), written);
            assert_eq!(written.parse(), Ok(limit));
        }
        for text in [
            "",
            "20",
            "GiB",
            "20GiBs",
            "-1GiB",
            "1e3GiB",
            "1.2.3GB",
            "0.9",
            "90%",
            ".GB",
            "99999999TiB",
            "18446744073709551616B",
        ] {
            assert!(text.parse::<MemoryLimit>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_limit_is_of_the_device() {
        let device = 80 << 30;
        assert_eq!(MemoryLimit::Fraction(0.5).bytes(device), 40 << 30);
        assert_eq!(MemoryLimit::Fraction(1.0).bytes(u64::MAX), u64::MAX);
        assert_eq!(MemoryLimit::Bytes(7).bytes(device), 7);
        assert_eq!(MemoryLimit::Bytes(u64::MAX).bytes(device), device);
    }
}
