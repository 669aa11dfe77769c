use std::{io, path::Path};

/// Identity of the file at a path, to detect a replacement. On systems without file numbers, it detects only removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity(Option<(u64, u64)>);

impl Identity {
    /// The identity of a file or directory. The file is not opened: closing it would release SQLite's locks on it.
    ///
    /// # Errors
    /// If nothing exists at the path.
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

    /// True if the same file is at the path.
    pub fn is_at(self, path: &Path) -> bool {
        Self::of(path).is_ok_and(|now| now == self)
    }
}
