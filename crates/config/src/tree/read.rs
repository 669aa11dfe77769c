//! Parses text to a tree, by the file's extension.

use std::fs;

use serde::de::IgnoredAny;
use serde_saphyr::{Error as YamlError, NonFiniteFloatPolicy};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{Key, Node, Value, words::in_words};
use crate::{
    ConfigError,
    place::{Location, Source},
};

/// Most lists and mappings around a value of YAML. At 64, the parser's default, a debug build overflows a
/// stack of 2 MiB.
const DEEPEST: usize = 32;

/// Reads a file as YAML, TOML or JSON, by its extension.
///
/// # Errors
/// The file cannot be read, has another extension or is malformed.
pub(crate) fn read_file(source: &Source<'_>) -> Result<Node, ConfigError> {
    let path = source.path;
    let extension = path.extension().and_then(|extension| extension.to_str());
    let parse = match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("yaml" | "yml") => read_yaml,
        Some("json") => read_json,
        Some("toml") => read_toml,
        _ => {
            return Err(ConfigError::UnknownFormat {
                path: path.to_owned(),
            });
        }
    };
    let bytes = fs::read(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    let parsed = match str::from_utf8(&bytes) {
        Ok(text) => parse(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => Err(not_utf8(&bytes, error.valid_up_to())),
    };
    parsed.map_err(|mistake| malformed(mistake, source))
}

/// Reads YAML text that is not from a file.
///
/// # Errors
/// The text is not well formed.
pub(crate) fn read_text(text: &str, source: &Source<'_>) -> Result<Node, ConfigError> {
    read_yaml(text).map_err(|mistake| malformed(mistake, source))
}

/// Reads JSON text that is not from a file.
///
/// # Errors
/// The text is not well formed.
pub(crate) fn read_json_text(text: &str, source: &Source<'_>) -> Result<Node, ConfigError> {
    read_json(text).map_err(|mistake| malformed(mistake, source))
}

fn malformed((location, problem): (Location, String), source: &Source<'_>) -> ConfigError {
    ConfigError::Syntax {
        place: source.place(location),
        problem,
    }
}

/// Reads the value of an override, a YAML scalar, list or mapping.
///
/// # Errors
/// The text is not well formed.
pub(crate) fn read_fragment(text: &str, location: Location) -> Result<Node, String> {
    let mut node = read_yaml(text).map_err(|(_, problem)| problem)?;
    node.relocate(location);
    Ok(node)
}

/// A tree, or the place and the problem of malformed text.
type Parsed = Result<Node, (Location, String)>;

fn read_yaml(text: &str) -> Parsed {
    let options = serde_saphyr::options! { strict_booleans: true,
    // Validation refuses these with the key's path.
    non_finite_float_policy: NonFiniteFloatPolicy::PassThrough, with_snippet: false,
    budget: serde_saphyr::budget! { max_depth: DEEPEST } };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let location = error
            .location()
            .map_or(Location::Unknown, |at| Location::At(at.line(), at.column()));
        (location, yaml_problem(error.without_snippet()))
    })
}

/// The parser's message without the position and the names of Rust options.
fn yaml_problem(error: &YamlError) -> String {
    match error {
        YamlError::DuplicateMappingKey { key, .. } => match key {
            Some(key) => format!("key `{key}` appears twice in one mapping"),
            None => "a key appears twice in one mapping".to_owned(),
        },
        YamlError::MultipleDocuments { .. } => {
            "a second YAML document starts here; a configuration is one document".to_owned()
        }
        other => {
            let text = other.to_string();
            let end = text.rfind(" at line ").unwrap_or(text.len());
            in_words(&text[..end])
        }
    }
}

fn not_utf8(bytes: &[u8], valid: usize) -> (Location, String) {
    let text = str::from_utf8(&bytes[..valid]).unwrap_or_default();
    let problem = format!(
        "byte {:#04x} is not UTF-8 text; save the file as UTF-8",
        bytes[valid]
    );
    (Lines(text).location(valid), problem)
}

fn read_json(text: &str) -> Parsed {
    // JSON's parser refuses other YAML; YAML's parser knows the positions.
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| {
        let text = error.to_string();
        let problem = text.split(" at line ").next().unwrap_or(&text);
        // An empty file has a line as well.
        let (line, column) = (error.line().max(1), error.column().max(1));
        (Location::At(line as u64, column as u64), in_words(problem))
    })?;
    read_yaml(text)
}

fn read_toml(text: &str) -> Parsed {
    let lines = Lines(text);
    let table = DeTable::parse(text).map_err(|error| {
        let location = error
            .span()
            .map_or(Location::Unknown, |span| lines.location(span.start));
        (location, in_words(error.message()))
    })?;
    let entries = lines.entries(table.into_inner())?;
    Ok(Node {
        value: Value::Mapping(entries),
        location: Location::At(1, 1),
    })
}

/// Turns byte offsets into lines and columns.
struct Lines<'a>(&'a str);

impl Lines<'_> {
    fn location(&self, offset: usize) -> Location {
        let before = self.0.get(..offset).unwrap_or(self.0);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        Location::At(line as u64, column as u64)
    }

    fn entries(&self, table: DeTable<'_>) -> Result<Vec<(Key, Node)>, (Location, String)> {
        let entry = |(key, value): (Spanned<_>, Spanned<DeValue<'_>>)| {
            let location = self.location(key.span().start);
            let name = std::borrow::Cow::into_owned(key.into_inner());
            Ok((Key { name, location }, self.node(value)?))
        };
        // The table is sorted by name; the order of a grid is that of the file.
        let mut written: Vec<_> = table.into_iter().collect();
        written.sort_by_key(|(key, _)| key.span().start);
        written.into_iter().map(entry).collect()
    }

    fn node(&self, spanned: Spanned<DeValue<'_>>) -> Parsed {
        let location = self.location(spanned.span().start);
        let value = match spanned.into_inner() {
            DeValue::String(text) => Value::String(text.into_owned()),
            DeValue::Boolean(value) => Value::Bool(value),
            DeValue::Integer(value) => i128::from_str_radix(value.as_str(), value.radix())
                .map(Value::Integer)
                .map_err(|error| (location, error.to_string()))?,
            DeValue::Float(value) => value
                .as_str()
                .parse()
                .map(Value::Float)
                .map_err(|_| (location, format!("not a number: `{}`", value.as_str())))?,
            DeValue::Datetime(value) => {
                return Err((location, format!("dates are not supported: `{value}`")));
            }
            DeValue::Array(items) => Value::Sequence(
                items
                    .into_iter()
                    .map(|item| self.node(item))
                    .collect::<Result<_, _>>()?,
            ),
            DeValue::Table(table) => Value::Mapping(self.entries(table)?),
        };
        Ok(Node { value, location })
    }
}
