use std::{path::PathBuf, sync::Arc};

use axum::{
    Extension,
    extract::{Request, State},
};
use loraloom_inference::Replace;
use serde::Deserialize;

use super::{
    connections::Peer,
    error::{HttpError, shortened},
    key::Caller,
    read,
    state::HttpState,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadAdapter {
    lora_name: String,
    lora_path: PathBuf,
    #[serde(default)]
    load_inplace: Option<bool>,
    #[serde(default)]
    expected_generation: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnloadAdapter {
    lora_name: String,
}

/// `POST /v1/load_lora_adapter`, with vLLM's fields. `expected_generation` is the `system_fingerprint` that the
/// adapter must have to be replaced.
pub(crate) async fn load(
    State(state): State<Arc<HttpState>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<String, HttpError> {
    authorize(&state, &caller, peer)?;
    let load: LoadAdapter = read::json(request, &state.limits).await?;
    if load.lora_name.is_empty() || load.lora_name.chars().any(char::is_control) {
        let reason = "is empty or has a control character";
        return Err(HttpError::field("lora_name", reason));
    }
    let replaces = match (load.expected_generation, load.load_inplace) {
        (Some(_), Some(false)) => {
            let reason = "`expected_generation` replaces an adapter";
            return Err(HttpError::field("load_inplace", reason));
        }
        (Some(generation), _) => Replace::Generation(generation),
        (None, Some(true)) => Replace::Anything,
        (None, _) => Replace::Nothing,
    };
    let (name, path) = (load.lora_name, load.lora_path);
    let card = state.service.load(name, path, replaces).await?;
    Ok(format!(
        "Success: LoRA adapter '{}' added successfully.",
        card.name
    ))
}

/// `POST /v1/unload_lora_adapter`.
pub(crate) async fn unload(
    State(state): State<Arc<HttpState>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<String, HttpError> {
    authorize(&state, &caller, peer)?;
    let UnloadAdapter { lora_name } = read::json(request, &state.limits).await?;
    let done = format!(
        "Success: LoRA adapter '{}' removed successfully.",
        shortened(&lora_name)
    );
    state.service.unload(lora_name).await?;
    Ok(done)
}

/// A path is one of the server's files, so not everybody may have it loaded or trained on.
pub(crate) fn authorize(state: &HttpState, caller: &Caller, peer: Peer) -> Result<(), HttpError> {
    if !caller.is_admin {
        return Err(HttpError::NotAdmin);
    }
    if state.keys.is_none() && !peer.0.ip().to_canonical().is_loopback() {
        return Err(HttpError::NotLocal);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use loraloom_data::Tokenizer;
    use loraloom_inference::Service;

    use super::{super::HttpLimits, *};

    #[test]
    fn without_keys_changes_come_from_this_machine() {
        let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/tiny-llama");
        let tokenizer = Tokenizer::load(assets).unwrap();
        let (service, _commands) = Service::channel();
        let state = HttpState::new(service, tokenizer, 8, None, HttpLimits::default());
        let may = |address: &str| {
            let peer = Peer(address.parse().unwrap());
            authorize(&state, &state.anonymous, peer).is_ok()
        };
        assert!(may("127.0.0.1:5") && may("[::1]:5") && may("[::ffff:127.0.0.1]:5"));
        assert!(!may("192.168.0.7:5") && !may("[2001:db8::1]:5") && !may("[::ffff:8.8.8.8]:5"));
    }
}
