//! The verbs of the queue: `status`, `explain`, `submit`, `pause`, `resume` and `cancel`.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, Request, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode, Uri},
    response::Response,
};
use serde::Serialize;
use serde_json::json;

use super::{
    admin::Admin,
    error::{HttpError, json_response},
    key::{Caller, DEFAULT_TENANT},
    read,
    served_queue::ServedQueue,
    state::HttpState,
    submission,
};
use crate::{AskedTask, ExplainedTask, SubmittedTasks, queue};

/// The header of `submit --key`.
const KEY: &str = "idempotency-key";

type Reference = Result<Path<String>, PathRejection>;

/// `GET /v1/tasks`.
pub(crate) async fn list(State(state): State<Arc<HttpState>>) -> Result<Response, HttpError> {
    let queue = ServedQueue::of(&state)?;
    answer(&queue.on(|client| Ok(client.status()?)).await?)
}

/// `GET /v1/tasks/{task}`.
pub(crate) async fn one(
    State(state): State<Arc<HttpState>>,
    task: Reference,
) -> Result<Response, HttpError> {
    let queue = ServedQueue::of(&state)?;
    let reference = name(task)?;
    let found = queue.on(move |client| Ok(client.history(&reference)?));
    let (task, events) = found.await?;
    answer(&ExplainedTask::new(task, events))
}

/// `GET /v1/tasks/{task}/steps`: losses of its steps after `?after=STEP`, and of all evaluations, which come later than
/// their steps.
pub(crate) async fn steps(
    State(state): State<Arc<HttpState>>,
    uri: Uri,
    task: Reference,
) -> Result<Response, HttpError> {
    let queue = ServedQueue::of(&state)?;
    let reference = name(task)?;
    let after = match parameter(&uri, "after")? {
        None => 0,
        Some(text) => text
            .parse()
            .map_err(|_| HttpError::field("after", "is not a step"))?,
    };
    let losses = queue.with_curves(move |client, curves| {
        // Events beyond its step are of an earlier task of the name.
        let task = client.recorded(&reference)?;
        let found = task.and_then(|task| Some((curves.of(&task.name)?, task.step)));
        let (steps, evals) = found.map_or((&[][..], &[][..]), |(curves, last)| {
            let (steps, evals) = (&curves.steps, &curves.evals);
            (steps.between(after, last), evals.between(0, last))
        });
        Ok(json!({"steps": steps, "evals": evals}))
    });
    Ok(json_response(StatusCode::OK, &losses.await?))
}

/// `POST /v1/tasks`: all adapters of a configuration, or none.
pub(crate) async fn submit(
    State(state): State<Arc<HttpState>>,
    _: Admin,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, HttpError> {
    let queue = ServedQueue::of(&state)?;
    let key = key(request.headers())?;
    let is_rehearsal = match parameter(request.uri(), "dry_run")? {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(HttpError::field("dry_run", "is neither `true` nor `false`")),
    };
    let text = read::text(request, &state.limits).await?;
    let models = state.service.models().await.unwrap_or_default();
    let base = models.into_iter().next().map(|model| model.name);
    let submitted = queue.submitting(move |client| {
        let mut loaded = submission::load(&text, client)?;
        for adapter in &mut loaded.config.adapters {
            if base.as_ref() == Some(&adapter.name) {
                let reason = "is the base model's name in requests: choose another";
                return Err(HttpError::field(
                    format!("adapters.{}", adapter.name),
                    reason,
                ));
            }
            if adapter.tenant == DEFAULT_TENANT {
                adapter.tenant.clone_from(&caller.tenant);
            }
        }
        let key = key.as_deref();
        let (tasks, more) = if is_rehearsal {
            client.rehearse(&loaded.config, key)?
        } else {
            client.submit(&loaded.config, key)?
        };
        Ok((tasks, [loaded.warnings, more].concat()))
    });
    let (tasks, warnings) = submitted.await?;
    let mut value = json(&SubmittedTasks { tasks })?;
    // The command line prints them beside its JSON.
    if !warnings.is_empty() {
        value["warnings"] = warnings.into();
    }
    Ok(json_response(StatusCode::OK, &value))
}

/// `POST /v1/tasks/{task}/pause`.
pub(crate) async fn pause(
    State(state): State<Arc<HttpState>>,
    _: Admin,
    task: Reference,
    request: Request,
) -> Result<Response, HttpError> {
    ask(queue::Request::Pause, &state, task, request).await
}

/// `POST /v1/tasks/{task}/resume`.
pub(crate) async fn resume(
    State(state): State<Arc<HttpState>>,
    _: Admin,
    task: Reference,
    request: Request,
) -> Result<Response, HttpError> {
    ask(queue::Request::Resume, &state, task, request).await
}

/// `POST /v1/tasks/{task}/cancel`.
pub(crate) async fn cancel(
    State(state): State<Arc<HttpState>>,
    _: Admin,
    task: Reference,
    request: Request,
) -> Result<Response, HttpError> {
    ask(queue::Request::Cancel, &state, task, request).await
}

async fn ask(
    verb: queue::Request,
    state: &HttpState,
    task: Reference,
    request: Request,
) -> Result<Response, HttpError> {
    let queue = ServedQueue::of(state)?;
    let reference = name(task)?;
    read::nothing(request, &state.limits).await?;
    let asked = queue.on(move |client| Ok(client.ask(&reference, verb)?));
    let (task, _) = asked.await?;
    answer(&AskedTask::from(task))
}

fn name(task: Reference) -> Result<String, HttpError> {
    let Path(name) = task.map_err(|error| HttpError::field("task", error.body_text()))?;
    Ok(name)
}

fn key(headers: &HeaderMap) -> Result<Option<String>, HttpError> {
    let Some(value) = headers.get(KEY) else {
        return Ok(None);
    };
    let text = value.to_str();
    let text = text.map_err(|_| HttpError::field("Idempotency-Key", "is not of ASCII"))?;
    Ok(Some(text.to_owned()))
}

/// The value of the only parameter that a request may have.
fn parameter<'a>(uri: &'a Uri, known: &str) -> Result<Option<&'a str>, HttpError> {
    let mut found = None;
    let pairs = uri.query().unwrap_or_default().split('&');
    for pair in pairs.filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name != known {
            return Err(HttpError::unknown_field(super::error::shortened(name)));
        }
        if found.replace(value).is_some() {
            return Err(HttpError::field(known, "is there twice"));
        }
    }
    Ok(found)
}

fn answer(value: &impl Serialize) -> Result<Response, HttpError> {
    Ok(json_response(StatusCode::OK, &json(value)?))
}

fn json(value: &impl Serialize) -> Result<serde_json::Value, HttpError> {
    serde_json::to_value(value).map_err(|error| HttpError::Internal(error.to_string()))
}
