use std::{io, path::Path};

/// What a path led to, to tell if it still does. Where the system gives files no numbers, only whether
/// there is something is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity(Option<(u64, u64)>);

impl Identity {
    /// That of a file or directory. It is not opened: SQLite would lose its locks on it when it is closed.
    ///
    /// # Errors
    /// If there is none.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = path.metadata()?;
        #[cfg(unix)]
        let numbers = {
            use std::os::unix::fs::MetadataExt;
            Some((metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let numbers = {
            drop(metadata);
            None
        };
        Ok(Self(numbers))
    }

    /// Whether the path still leads there.
    pub fn is_at(self, path: &Path) -> bool {
        Self::of(path).is_ok_and(|now| now == self)
    }
}
