use std::{io, path::PathBuf};

/// An error of a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// There is no log of events.
    #[error("`{}` is not a run directory: it has no events.jsonl", path.display())]
    NoEvents {
        /// The directory.
        path: PathBuf,
    },
    /// A file of the run cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A TensorBoard file cannot be written.
    #[error("cannot write `{}`: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl ReportError {
    /// Advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoEvents { .. } => {
                Some("give the directory of a run of `loraloom train`, or of a server")
            }
            Self::Read { .. } | Self::Write { .. } => None,
        }
    }
}
