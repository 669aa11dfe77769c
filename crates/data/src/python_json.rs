//! JSON as Python's `json.dumps` writes it, which chat templates were trained with.

use std::fmt::Write;

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};

/// The filter `tojson` of transformers: `json.dumps` without escaping for HTML.
pub(crate) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(invalid("separators takes two strings")),
        // With an indent the newline replaces the space.
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer {
        out: String::new(),
        indent,
        item,
        key,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
    };
    options.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

struct Writer {
    out: String,
    indent: Option<usize>,
    item: String,
    key: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect::<Vec<_>>();
                self.container(('[', ']'), &items, depth, |writer, item| {
                    writer.value(item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys = value.try_iter()?.collect::<Vec<_>>();
                if self.sort_keys {
                    keys.sort();
                }
                self.container(('{', '}'), &keys, depth, |writer, key| {
                    let name = key.to_string();
                    writer.string(&name)?;
                    writer.out.push_str(&writer.key);
                    writer.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            kind => return Err(invalid(format!("a value of type {kind} has no JSON form"))),
        }
        Ok(())
    }

    fn container(
        &mut self,
        (open, close): (char, char),
        items: &[Value],
        depth: usize,
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.item);
            }
            self.newline(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.newline(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn newline(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        let quoted = serde_json::to_string(text)
            .map_err(|error| invalid("cannot quote a string").with_source(error))?;
        if !self.ensure_ascii {
            self.out.push_str(&quoted);
            return Ok(());
        }
        for character in quoted.chars() {
            if character.is_ascii() {
                self.out.push(character);
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(self.out, "\\u{unit:04x}")
                    .map_err(|error| invalid("cannot write a string").with_source(error))?;
            }
        }
        Ok(())
    }
}

/// Python's `repr` of a float: shortest digits, scientific outside 1e-4..1e16.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') {
        plain
    } else {
        format!("{plain}.0")
    }
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_are_written_as_python_does() {
        // Left: Python's `repr` of the number on the right.
        for (expected, value) in [
            ("0.0", 0.0),
            ("-0.0", -0.0),
            ("1.0", 1.0),
            ("0.1", 0.1),
            ("1e-05", 0.000_01),
            ("0.0001", 0.0001),
            ("1.5e-07", 1.5e-7),
            ("1000000000000000.0", 1e15),
            ("1e+16", 1e16),
            ("1.2345e+100", 1.2345e100),
            ("-2.5", -2.5),
        ] {
            assert_eq!(float(value), expected);
        }
    }
}
