use std::{path::PathBuf, sync::Arc};

use axum::extract::{Request, State};
use loraloom_inference::{Replace, is_of_run};
use serde::Deserialize;

use super::{
    admin::Admin,
    error::{HttpError, shortened},
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
    _: Admin,
    request: Request,
) -> Result<String, HttpError> {
    let load: LoadAdapter = read::json(request, &state.limits).await?;
    if load.lora_name.is_empty() || load.lora_name.chars().any(char::is_control) {
        let reason = "is empty or has a control character";
        return Err(HttpError::field("lora_name", reason));
    }
    if is_of_run(&load.lora_name) {
        let reason =
            "`@live`, `@best`, `@last` and `@STEP` name adapters of a run: choose another name";
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
    _: Admin,
    request: Request,
) -> Result<String, HttpError> {
    let UnloadAdapter { lora_name } = read::json(request, &state.limits).await?;
    let done = format!(
        "Success: LoRA adapter '{}' removed successfully.",
        shortened(&lora_name)
    );
    state.service.unload(lora_name).await?;
    Ok(done)
}
