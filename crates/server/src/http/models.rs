use std::sync::Arc;

use axum::{
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
    response::Response,
};
use loraloom_inference::{ModelCard, ServiceError};
use serde_json::{Value, json};

use super::{
    error::{HttpError, json_response},
    state::HttpState,
};

/// `GET /v1/models`.
pub(crate) async fn list(State(state): State<Arc<HttpState>>) -> Result<Response, HttpError> {
    let models = state.service.models().await?;
    let models: Vec<Value> = models.iter().map(|model| card(&state, model)).collect();
    let list = json!({"object": "list", "data": models});
    Ok(json_response(StatusCode::OK, &list))
}

/// `GET /v1/models/{id}`.
pub(crate) async fn one(
    State(state): State<Arc<HttpState>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, HttpError> {
    let Path(name) = name.map_err(|error| HttpError::field("model", error.body_text()))?;
    let models = state.service.models().await?;
    let Some(model) = models.iter().find(|model| model.name == name) else {
        let known = models.into_iter().map(|model| model.name).collect();
        return Err(ServiceError::UnknownModel { name, known }.into());
    };
    Ok(json_response(StatusCode::OK, &card(&state, model)))
}

fn card(state: &HttpState, model: &ModelCard) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": state.started,
        "owned_by": "loraloom",
        "parent": model.parent,
        "max_model_len": state.context,
        "system_fingerprint": model.generation,
        "rank": model.rank,
        "bytes": model.bytes,
    })
}
