use std::sync::Arc;

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
    middleware::{self, Next},
    response::Response,
    routing::{get, post},
};

use super::{
    adapters, error::HttpError, error::shortened, generate, metrics, models, page,
    state::HttpState, tasks,
};

/// All routes.
pub(crate) fn router(state: Arc<HttpState>) -> Router {
    let authorize = middleware::from_fn_with_state(Arc::clone(&state), authorize);
    let count = middleware::from_fn_with_state(Arc::clone(&state), count);
    Router::new()
        .route("/metrics", get(metrics::page))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/v1/tasks", get(tasks::list).post(tasks::submit))
        .route("/v1/tasks/{task}", get(tasks::one))
        .route("/v1/tasks/{task}/steps", get(tasks::steps))
        .route("/v1/tasks/{task}/pause", post(tasks::pause))
        .route("/v1/tasks/{task}/resume", post(tasks::resume))
        .route("/v1/tasks/{task}/cancel", post(tasks::cancel))
        .route_layer(authorize)
        .route("/", get(page::page))
        .route("/health", get(health))
        .fallback(no_route)
        .method_not_allowed_fallback(other_method)
        .layer(count)
        .with_state(state)
}

/// For probes: fails once nothing answers any more.
async fn health(State(state): State<Arc<HttpState>>) -> StatusCode {
    if state.service.is_alive() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// Lets requests with a key through, or all if there are no keys.
async fn authorize(
    State(state): State<Arc<HttpState>>,
    mut request: Request,
    next: Next,
) -> Result<Response, HttpError> {
    let caller = match &state.keys {
        None => Arc::clone(&state.anonymous),
        Some(keys) => {
            let key = bearer(request.headers()).ok_or(HttpError::Key)?;
            keys.find(key).ok_or(HttpError::Key)?
        }
    };
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// Counts a response under its route, of which there are few.
async fn count(State(state): State<Arc<HttpState>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = route.as_ref().map_or("other", MatchedPath::as_str);
    state.metrics.response(route, response.status().as_u16());
    response
}

async fn no_route(request: Request) -> HttpError {
    HttpError::NoRoute {
        path: shortened(request.uri().path()),
    }
}

async fn other_method(request: Request) -> HttpError {
    HttpError::Method {
        path: shortened(request.uri().path()),
        method: shortened(request.method().as_str()),
    }
}
