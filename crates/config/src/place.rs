//! Places of values in files and on the command line.

use std::{
    fmt,
    path::{Path, PathBuf},
};

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
#[derive(Debug, Clone)]
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
            Location::Set(index) => self.overrides.get(index).map_or_else(
                || Place::File(self.path.to_owned()),
                |text| Place::Set(text.clone()),
            ),
            Location::Unknown => Place::File(self.path.to_owned()),
        }
    }
}
