//! JSON values without loss: duplicate keys are an error, and integers keep their digits.

use std::{cell::Cell, fmt};

use minijinja::Value;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The value of a JSON text.
pub(crate) fn parse(text: &str) -> serde_json::Result<Value> {
    let numbers = Numbers {
        rest: Cell::new(text),
        passed: Cell::new(0),
    };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Json(&numbers).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// From here on the parser returns integers as floats.
const LEAST_ROUNDED: f64 = 9_223_372_036_854_775_808.0;

/// The numbers of a text as written. They are searched only if one was rounded.
struct Numbers<'t> {
    /// The text after the last number that was searched.
    rest: Cell<&'t str>,
    /// Numbers in it that the parser has passed.
    passed: Cell<usize>,
}

impl<'t> Numbers<'t> {
    fn pass(&self) {
        self.passed.set(self.passed.get() + 1);
    }

    /// The number that the parser passed last.
    fn last(&self) -> &'t str {
        let mut last = "";
        for _ in 0..self.passed.take() {
            let (number, rest) = first_number(self.rest.get());
            last = number;
            self.rest.set(rest);
        }
        last
    }
}

/// The first number outside strings in a valid text, and the text after it.
fn first_number(text: &str) -> (&str, &str) {
    let (mut in_string, mut escaped) = (false, false);
    for (start, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'-' | b'0'..=b'9' if !in_string => {
                let is_part =
                    |byte: u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let length = text[start..]
                    .bytes()
                    .take_while(|byte| is_part(*byte))
                    .count();
                return text[start..].split_at(length);
            }
            _ => {}
        }
    }
    ("", "")
}

/// A value whose objects have each key once.
#[derive(Clone, Copy)]
struct Json<'n>(&'n Numbers<'n>);

impl<'de> DeserializeSeed<'de> for Json<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Json<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        self.0.pass();
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        self.0.pass();
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.0.pass();
        if value.abs() < LEAST_ROUNDED {
            return Ok(Value::from(value));
        }
        let written = self.0.last();
        let digits = written.trim_start_matches('-');
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Value::from(value));
        }
        written.parse::<i128>().map(Value::from).map_err(|_| {
            E::custom(format!(
                "an integer of {} digits; at most 38 are supported: write it as text, in quotes",
                digits.len()
            ))
        })
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::from(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut fields: Vec<(String, Value)> = Vec::new();
        while let Some(key) = object.next_key()? {
            fields.push((key, object.next_value_seed(self)?));
        }
        let value = Value::from_pairs(fields.iter().map(|(key, value)| (&**key, value.clone())));
        if value.len() != Some(fields.len()) {
            let mut keys: Vec<_> = fields.iter().map(|(key, _)| key).collect();
            keys.sort_unstable();
            let twice = keys.windows(2).find(|pair| pair[0] == pair[1]);
            let key = twice.map(|pair| pair[0].as_str()).unwrap_or_default();
            return Err(A::Error::custom(format!(
                "the object that ends here has the key `{key}` twice"
            )));
        }
        Ok(value)
    }
}
