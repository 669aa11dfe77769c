//! The parts of a connection that both ends share.

use std::{net::SocketAddr, ops::Range, time::Duration};

use iroh::{
    Endpoint, RelayMode, SecretKey,
    endpoint::{PortmapperConfig, QuicTransportConfig, presets},
};
use loraloom_model::{Checkpoint, LlamaConfig, ModelError, stage_parameters};

/// A connection ends when nothing arrives for this long.
const SILENCE: Duration = Duration::from_secs(5);

/// Interval at which an idle end sends a sign of life.
const SIGN: Duration = Duration::from_millis(500);

/// An endpoint without relays or directories; `listen` is the address that others reach it by.
///
/// # Errors
/// If the address is taken or not of this machine.
pub(super) async fn bind(
    listen: Option<(SocketAddr, SecretKey)>,
) -> Result<Endpoint, Box<dyn std::error::Error + Send + Sync>> {
    let mut transport = QuicTransportConfig::builder()
        // Some kernels lose segments; see iroh's issue 4555.
        .enable_segmentation_offload(false)
        .keep_alive_interval(SIGN)
        .default_path_keep_alive_interval(SIGN)
        .default_path_max_idle_timeout(SILENCE);
    transport = transport.max_idle_timeout(Some(SILENCE.try_into()?));
    let mut builder = Endpoint::builder(presets::Minimal)
        .relay_mode(RelayMode::Disabled)
        // No router is asked to open a port.
        .portmapper_config(PortmapperConfig::Disabled)
        .transport_config(transport.build());
    if let Some((address, key)) = listen {
        builder = builder
            .secret_key(key)
            .alpns(vec![burn::server::BURN_REMOTE_ALPN.to_vec()])
            .clear_ip_transports()
            .bind_addr(address)?;
    }
    Ok(builder.bind().await?)
}

/// A configuration with a field per line, for comparison.
pub(super) fn describe(config: &LlamaConfig) -> String {
    let stored = LlamaConfig {
        quantization: None,
        ..config.clone()
    };
    format!("{stored:#?}")
}

/// BLAKE3 over name, type, shape and bytes of every parameter of a stage with these layers, as stored, to
/// compare the weights of two machines. Reads all bytes once.
///
/// # Errors
/// If a parameter is missing.
pub(super) fn weights_digest(
    checkpoint: &Checkpoint,
    config: &LlamaConfig,
    layers: &Range<usize>,
) -> Result<[u8; 32], ModelError> {
    let mut whole = blake3::Hasher::new();
    for (name, shape) in stage_parameters(config, layers) {
        for (header, bytes) in checkpoint.stored_parts(&name, &shape)? {
            whole.update(header.as_bytes());
            whole.update(blake3::hash(bytes).as_bytes());
        }
    }
    Ok(*whole.finalize().as_bytes())
}
