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

/// The right to write to a run directory: a lock that the system takes back when the process ends,
/// however it ends.
#[derive(Debug)]
pub(crate) struct Claim {
    _lock: File,
}

impl Claim {
    /// Takes it.
    ///
    /// # Errors
    /// [`TrainerError::RunInUse`] if another process has it.
    pub(crate) fn take(directory: &Path) -> Result<Self> {
        let path = directory.join(LOCK);
        let lock = on(&path, File::create(&path))?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => Err(TrainerError::RunInUse {
                path: directory.to_owned(),
            }),
            // Some network file systems have no locks: there it is up to the user.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Self { _lock: lock }),
        }
    }
}

/// Refuses the directory of a run that another process trains.
///
/// # Errors
/// [`TrainerError::RunInUse`] if it is one.
pub fn refuse_in_use(directory: &Path) -> Result<()> {
    if is_run(directory) {
        Claim::take(directory)?;
    }
    Ok(())
}
