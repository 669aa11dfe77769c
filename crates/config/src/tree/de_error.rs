//! Errors of deserializing a tree, which collect the path of the key as they propagate.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

use super::words::quoted;
use crate::{
    ConfigError,
    place::{Location, Source},
    suggest::{self, Candidates},
    target_module::NAMES,
};

/// A mistake, its innermost known place, and the path to it in reverse.
#[derive(Debug, thiserror::Error)]
#[error("{kind}")]
pub(crate) struct DeError {
    kind: Kind,
    location: Location,
    path: Vec<Step>,
}

/// One step of a path.
#[derive(Debug)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

#[derive(Debug, thiserror::Error)]
enum Kind {
    #[error("unknown key `{key}`")]
    UnknownKey {
        key: String,
        valid: &'static [&'static str],
    },
    #[error("unknown value `{name}`")]
    UnknownName {
        name: String,
        valid: &'static [&'static str],
    },
    #[error("missing key `{0}`")]
    MissingKey(&'static str),
    #[error("{0}")]
    Problem(String),
}

impl DeError {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            location: Location::Unknown,
            path: Vec::new(),
        }
    }

    /// Sets the place, unless a more exact one is known.
    pub(super) fn at(mut self, location: Location) -> Self {
        if self.location == Location::Unknown {
            self.location = location;
        }
        self
    }

    /// Adds a step to the path of the mistake.
    pub(super) fn below(mut self, step: Step) -> Self {
        self.path.push(step);
        self
    }

    /// The public error, with the whole path below `parent`.
    pub(super) fn into_config(self, source: &Source<'_>, parent: &str) -> ConfigError {
        let place = source.place(self.location);
        let mut path = parent.to_owned();
        for step in self.path.iter().rev() {
            path = step.below(&path);
        }
        match self.kind {
            Kind::UnknownKey { key, valid } => {
                let mut candidates = Candidates::of(&key, valid.iter().copied());
                if candidates.nearest.is_none() && valid.contains(&"lora") {
                    candidates.nearest = suggest::in_section(&key);
                }
                ConfigError::UnknownKey {
                    place,
                    valid: Box::new(candidates),
                    key,
                    parent: path,
                }
            }
            Kind::UnknownName { name, valid } => ConfigError::UnknownName {
                place,
                key: path,
                what: if valid == NAMES { "module" } else { "value" },
                valid: Box::new(Candidates::of(&name, valid.iter().copied())),
                name,
            },
            Kind::MissingKey(key) => ConfigError::MissingKey {
                place,
                key: Step::Key(key.to_owned()).below(&path),
            },
            Kind::Problem(problem) if path.is_empty() => ConfigError::Syntax { place, problem },
            Kind::Problem(problem) => ConfigError::Invalid {
                place,
                key: path,
                problem,
            },
        }
    }
}

impl Step {
    fn below(&self, parent: &str) -> String {
        match self {
            Self::Key(key) if parent.is_empty() => key.clone(),
            Self::Key(key) => format!("{parent}.{key}"),
            Self::Index(index) => format!("{parent}[{index}]"),
        }
    }
}

impl de::Error for DeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Kind::Problem(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let most = match found {
            // Longer numbers are read as floats.
            Unexpected::Float(value) if value >= u64::MAX as f64 => {
                format!(", at most {}", u64::MAX)
            }
            _ => String::new(),
        };
        let expected = words(expected);
        let most = if expected == WHOLE { &*most } else { "" };
        Self::new(Kind::Problem(format!(
            "expected {expected}{most}, found {}",
            shown(found)
        )))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_field(key: &str, valid: &'static [&'static str]) -> Self {
        Self::new(Kind::UnknownKey {
            key: key.to_owned(),
            valid,
        })
    }

    fn unknown_variant(name: &str, valid: &'static [&'static str]) -> Self {
        Self::new(Kind::UnknownName {
            name: name.to_owned(),
            valid,
        })
    }

    fn missing_field(key: &'static str) -> Self {
        Self::new(Kind::MissingKey(key))
    }
}

const WHOLE: &str = "a whole number, 0 or larger";

/// Serde's name of an expected type in the user's words.
fn words(expected: &dyn Expected) -> String {
    match expected.to_string().as_str() {
        "usize" | "u64" | "u32" => WHOLE.to_owned(),
        "i64" | "i32" => "a whole number".to_owned(),
        "f64" | "f32" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a mapping".to_owned(),
        other => other.to_owned(),
    }
}

fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(value) => format!("`{value}`"),
        Unexpected::Signed(value) => format!("`{value}`"),
        Unexpected::Float(value) => format!("`{value:?}`"),
        Unexpected::Str(text) => quoted(text),
        Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a mapping".to_owned(),
        other => other.to_string(),
    }
}
