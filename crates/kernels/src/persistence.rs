use std::{
    error::Error,
    fmt,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    process,
};

use burn_cubecl::cubecl::config::{
    CubeClRuntimeConfig, RuntimeConfig, cache::CacheConfig, environment::EnvironmentConfig,
};

/// The directory of kept kernels cannot be written.
#[derive(Debug)]
pub struct UnwritableKernels {
    /// The directory.
    pub directory: PathBuf,
    /// The error.
    pub source: io::Error,
}

impl fmt::Display for UnwritableKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directory, source } = self;
        write!(
            f,
            "cannot keep kernels in `{}`: {source}",
            directory.display()
        )
    }
}

impl Error for UnwritableKernels {}

/// Keeps tuned kernels and, with `compiled`, compiled ones in `$XDG_CACHE_HOME/cubecl/NAME.db` and reuses those
/// of earlier processes.
///
/// Call this before any device is opened. A path in `cubecl.toml` and CubeCL's environment variables take
/// precedence.
///
/// # Errors
/// [`UnwritableKernels`] if the file cannot be written: every process tunes and compiles again then.
pub fn persist_kernels(name: &str, compiled: bool) -> Result<(), UnwritableKernels> {
    let config = configured(CubeClRuntimeConfig::from_current_dir(), name, compiled);
    let config = config.override_from_env();
    let EnvironmentConfig { name, path, .. } = &config.environment;
    let directory = path.root();
    let written = writable(&directory, name);
    CubeClRuntimeConfig::try_set(config);
    written.map_err(|source| UnwritableKernels { directory, source })
}

/// Without the name, CubeCL would keep what it tunes in `default.db`.
fn configured(mut config: CubeClRuntimeConfig, name: &str, compiled: bool) -> CubeClRuntimeConfig {
    let EnvironmentConfig {
        name: set, path, ..
    } = &mut config.environment;
    if *set == EnvironmentConfig::default().name && matches!(path, CacheConfig::Target) {
        *path = CacheConfig::Global;
        name.clone_into(set);
    }
    config.compilation.cache |= compiled;
    config
}

/// Checks that the file of kernels, and others beside it, can be written.
fn writable(directory: &Path, name: &str) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let file = directory.join(format!("{name}.db"));
    if file.exists() {
        OpenOptions::new().append(true).open(file)?;
    }
    let probe = directory.join(format!(".{name}-{}", process::id()));
    File::create(&probe)?;
    fs::remove_file(probe)
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use burn_cubecl::cubecl::config::CubeClRuntimeConfig;

    use super::{configured, writable};

    #[test]
    fn kernels_are_never_in_a_file_called_default() {
        for compiled in [false, true] {
            let config = configured(CubeClRuntimeConfig::default(), "mine", compiled);
            assert_eq!(config.environment.name, "mine");
            assert_eq!(config.compilation.cache, compiled);
        }
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_noticed() {
        let directory = env::temp_dir().join(format!("batchlora-kernels-{}", process::id()));
        writable(&directory.join("new"), "mine").unwrap();
        assert_eq!(fs::read_dir(directory.join("new")).unwrap().count(), 0);
        // A file or a directory of that name stops root as well.
        fs::write(directory.join("file"), "").unwrap();
        assert!(writable(&directory.join("file"), "mine").is_err());
        fs::create_dir(directory.join("mine.db")).unwrap();
        assert!(writable(&directory, "mine").is_err());
        fs::remove_dir_all(directory).unwrap();
    }
}
