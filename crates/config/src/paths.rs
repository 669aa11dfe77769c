//! What a relative path in a configuration is relative to.

use std::path::{Path, PathBuf};

/// The path as written if it is absolute or exists below the working directory, as other trainers
/// have it; otherwise below the configuration's own directory if it exists there; otherwise as
/// written, for whoever opens it to report.
pub(crate) fn input_path(written: &str, config: &Path) -> PathBuf {
    let written = PathBuf::from(written);
    if written.as_os_str().is_empty() || written.is_absolute() || written.exists() {
        return written;
    }
    let beside = config
        .parent()
        .unwrap_or_else(|| Path::new(""))
        .join(&written);
    if beside.exists() { beside } else { written }
}

/// Where a run writes if the configuration does not say: `runs/` and the file's stem.
pub(crate) fn default_output_dir(config: &Path) -> PathBuf {
    Path::new("runs").join(config.file_stem().unwrap_or(config.as_os_str()))
}
