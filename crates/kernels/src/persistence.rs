use burn_cubecl::cubecl::config::{
    CubeClRuntimeConfig, RuntimeConfig, cache::CacheConfig, environment::EnvironmentConfig,
};

/// Keeps tuned and compiled kernels in `$XDG_CACHE_HOME/cubecl/NAME.db` and reuses those of earlier
/// processes. If the file cannot be written, every process tunes and compiles again.
///
/// Call this before any device is opened. A path in `cubecl.toml` and CubeCL's environment variables take
/// precedence.
pub fn persist_kernels(name: &str) {
    let mut config = CubeClRuntimeConfig::from_current_dir();
    let EnvironmentConfig {
        name: set, path, ..
    } = &mut config.environment;
    if *set == EnvironmentConfig::default().name && matches!(path, CacheConfig::Target) {
        *path = CacheConfig::Global;
        name.clone_into(set);
    }
    config.compilation.cache = true;
    CubeClRuntimeConfig::try_set(config.override_from_env());
}
