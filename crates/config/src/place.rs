//! Places of values in files and on the command line.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::{ConfigError, suggest::Candidates};

/// Place of a value, as shown in messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A position in a file; lines and columns count from 1.
    At {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Column, in characters.
        column: u64,
    },
    /// A file, where no position in it is to blame.
    File(PathBuf),
    /// An override, as it was written on the command line.
    Set(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Set(text) => write!(f, "--set {text}"),
        }
    }
}

/// Place of a node in the tree, without the names that [`Source`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Location {
    /// Line and column in the file, from 1.
    At(u64, u64),
    /// The override with this index.
    Set(usize),
    /// A default or an option of the caller.
    Unknown,
}

/// The file and the overrides that one tree was built from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// The configuration file.
    pub(crate) path: &'a Path,
    /// The overrides, as written.
    pub(crate) overrides: &'a [String],
}

impl Source<'_> {
    /// The place of a location of this source's tree.
    pub(crate) fn place(&self, location: Location) -> Place {
        match location {
            Location::At(line, column) => Place::At {
                path: self.path.to_owned(),
                line,
                column,
            },
            Location::Set(index) => Place::Set(self.overrides[index].clone()),
            Location::Unknown => Place::File(self.path.to_owned()),
        }
    }

    /// The error for a value of the wrong type or out of its range.
    pub(crate) fn invalid(
        &self,
        location: Location,
        key: impl Into<String>,
        problem: impl Into<String>,
    ) -> ConfigError {
        ConfigError::Invalid {
            place: self.place(location),
            key: key.into(),
            problem: problem.into(),
        }
    }

    /// The error for a required key that is absent.
    pub(crate) fn missing(&self, location: Location, key: impl Into<String>) -> ConfigError {
        ConfigError::MissingKey {
            place: self.place(location),
            key: key.into(),
        }
    }

    /// The error for a word that is not among the valid ones.
    pub(crate) fn unknown_name<'v>(
        &self,
        location: Location,
        key: impl Into<String>,
        what: &'static str,
        name: &str,
        valid: impl IntoIterator<Item = &'v str>,
    ) -> ConfigError {
        ConfigError::UnknownName {
            place: self.place(location),
            key: key.into(),
            what,
            name: name.to_owned(),
            valid: Box::new(Candidates::of(name, valid)),
        }
    }
}
