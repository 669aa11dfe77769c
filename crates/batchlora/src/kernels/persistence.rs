use burn_cubecl::cubecl::config::{
    CubeClRuntimeConfig, RuntimeConfig, cache::CacheConfig, environment::EnvironmentConfig,
};

/// Keeps the kernels that this process tunes and compiles in `$XDG_CACHE_HOME/cubecl/NAME.db`, and takes
/// from there what earlier processes left. Where that cannot be written, every process begins anew.
///
/// To be called before any device is opened. A `cubecl.toml` that names a place stands, as do CubeCL's
/// environment variables.
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
