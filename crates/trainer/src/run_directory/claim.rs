use std::{
    fs::{File, TryLockError},
    path::Path,
};

use super::is_run;
use crate::{
    TrainerError,
    error::{Result, on},
};

const LOCK: &str = ".lock";

/// The right to write to a run directory: a file lock, which the system releases when the process ends.
#[derive(Debug)]
pub(crate) struct Claim {
    _lock: File,
}

impl Claim {
    /// Locks the directory.
    ///
    /// # Errors
    /// [`TrainerError::RunInUse`] if another process has the lock.
    pub(crate) fn take(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK);
        let lock = on(&path, File::create(&path))?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => Err(TrainerError::RunInUse {
                path: directory.to_owned(),
            }),
            // Some network file systems have no locks; there the user must prevent concurrent runs.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Self { _lock: lock }),
        }
    }
}

/// Checks that no process trains into the directory.
///
/// # Errors
/// [`TrainerError::RunInUse`] if one does.
pub fn refuse_in_use(directory: &Path) -> Result<()> {
    if is_run(directory) {
        Claim::take(directory)?;
    }
    Ok(())
}
