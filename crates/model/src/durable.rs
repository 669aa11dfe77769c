//! Files and directories that survive a crash of the machine.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::Path,
};

/// Writes a new file; it is on the disk when this returns.
///
/// # Errors
/// If the file exists, or the disk fails.
pub fn write_synced(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

/// Makes the entries of a directory durable on systems that can.
///
/// # Errors
/// If the disk fails.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        File::open(path)?.sync_all()
    } else {
        Ok(())
    }
}

/// As [`fs::create_dir_all`]; the new directories are on the disk when this returns.
///
/// # Errors
/// If one cannot be made, or the disk fails.
pub fn create_directories(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        create_directories(parent)?;
    }
    create_directory(path)
}

/// Makes a directory unless it exists; it is on the disk when this returns. Its parent must exist: a removed
/// parent is not made again.
///
/// # Errors
/// If it cannot be made, or the disk fails.
pub fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    match fs::create_dir(path) {
        // Another process may have made it meanwhile.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => path.parent().map_or(Ok(()), sync_directory),
    }
}
