use std::time::Duration;

use axum::{
    body::Body,
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use loraloom_data::DataError;
use loraloom_inference::{InferenceError, ServiceError};
use serde_json::{Value, json};

use super::queue_error;
use crate::{ServerError, with_causes};

/// Most similar names that an error shows.
const SIMILAR: usize = 3;
/// Least Jaro-Winkler similarity of a name that is worth showing.
const LEAST_SIMILARITY: f64 = 0.7;
const INVALID: &str = "invalid_request_error";
const RATE: &str = "rate_limit_error";
const SERVER: &str = "server_error";

/// A request that is refused, or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("malformed body: {reason}")]
    Body { reason: String },
    #[error("`{param}`: {reason}")]
    Field { param: String, reason: String },
    #[error("`{param}` is not supported")]
    Unsupported { param: String },
    #[error("the header `Content-Type` must be `application/json`")]
    MediaType,
    #[error("the body is longer than {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("the body did not arrive within {} s", limit.as_secs_f64())]
    BodyTimeout { limit: Duration },
    #[error("the body ended early: {reason}")]
    BodyIncomplete { reason: String },
    #[error("the header `Authorization` must be `Bearer` and a key of this server")]
    Key,
    #[error("this key may not change adapters or tasks")]
    NotAdmin,
    #[error("without keys, adapters and tasks are changed only from this machine")]
    NotLocal,
    #[error("this key's limit of {limit} {unit} a minute is reached; retry in {wait} s")]
    Rate {
        limit: u32,
        unit: &'static str,
        /// Seconds.
        wait: u64,
    },
    #[error("there is no `{path}`")]
    NoRoute { path: String },
    #[error("`{path}` does not take {method}")]
    Method { path: String, method: String },
    #[error("this server has no queue of tasks: it only answers")]
    NoQueue,
    #[error("{}", with_causes(&**.0))]
    Queue(Box<ServerError>),
    #[error("{}", message(.0))]
    Service(#[from] ServiceError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("{0}")]
    Internal(String),
}

/// Where an error is in OpenAI's terms.
pub(super) struct Parts<'a> {
    pub(super) status: StatusCode,
    kind: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
    /// Seconds.
    retry_after: Option<u64>,
}

impl<'a> Parts<'a> {
    /// A request that must be changed.
    pub(super) fn invalid(
        status: StatusCode,
        param: Option<&'a str>,
        code: Option<&'static str>,
    ) -> Self {
        Self {
            status,
            kind: INVALID,
            param,
            code,
            retry_after: None,
        }
    }

    /// A request that failed.
    pub(super) fn server(status: StatusCode) -> Self {
        Self {
            status,
            kind: SERVER,
            param: None,
            code: None,
            retry_after: None,
        }
    }
}

impl HttpError {
    /// A value that a field does not take.
    pub(crate) fn field(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Field {
            param: param.into(),
            reason: reason.into(),
        }
    }

    /// A field that a request of the kind does not have.
    pub(crate) fn unknown_field(param: impl Into<String>) -> Self {
        Self::field(param, "unknown field")
    }

    fn parts(&self) -> Parts<'_> {
        let invalid = Parts::invalid;
        let bad = |param, code| invalid(StatusCode::BAD_REQUEST, param, code);
        let failed = Parts::server(StatusCode::INTERNAL_SERVER_ERROR);
        match self {
            Self::Body { .. } | Self::BodyIncomplete { .. } => bad(None, None),
            Self::Field { param, .. } => bad(Some(param), None),
            Self::Unsupported { param } => bad(Some(param), Some("unsupported_parameter")),
            Self::MediaType => invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, None),
            Self::BodyTooLarge { .. } => invalid(StatusCode::PAYLOAD_TOO_LARGE, None, None),
            Self::BodyTimeout { .. } => invalid(StatusCode::REQUEST_TIMEOUT, None, None),
            Self::Key => invalid(StatusCode::UNAUTHORIZED, None, Some("invalid_api_key")),
            Self::NotAdmin | Self::NotLocal => invalid(StatusCode::FORBIDDEN, None, None),
            Self::Rate { wait, .. } => too_many("rate_limit_exceeded", *wait),
            Self::NoQueue => invalid(StatusCode::NOT_FOUND, None, Some("no_queue")),
            Self::Queue(error) => queue_error::parts(error),
            Self::NoRoute { .. } => invalid(StatusCode::NOT_FOUND, None, None),
            Self::Method { .. } => invalid(StatusCode::METHOD_NOT_ALLOWED, None, None),
            Self::Service(error) => match error {
                ServiceError::UnknownModel { .. } | ServiceError::NoWeights { .. } => invalid(
                    StatusCode::NOT_FOUND,
                    Some("model"),
                    Some("model_not_found"),
                ),
                ServiceError::NameTaken { .. } | ServiceError::BaseName { .. } => {
                    bad(Some("lora_name"), None)
                }
                ServiceError::OtherGeneration { .. } => {
                    invalid(StatusCode::CONFLICT, Some("expected_generation"), None)
                }
                ServiceError::Adapter(_) | ServiceError::AdapterTooLarge { .. } => {
                    bad(Some("lora_path"), None)
                }
                ServiceError::Busy { .. } => too_many("server_overloaded", 1),
                ServiceError::Refused(
                    InferenceError::PromptTooLong { .. } | InferenceError::TooLarge { .. },
                ) => bad(None, Some("context_length_exceeded")),
                ServiceError::Refused(InferenceError::EmptyPrompt) => bad(None, None),
                ServiceError::Refused(_) | ServiceError::Failed(_) => failed,
                ServiceError::Stopped => Parts::server(StatusCode::SERVICE_UNAVAILABLE),
            },
            Self::Data(_) | Self::Internal(_) => failed,
        }
    }

    /// OpenAI's object, with a hint where there is one.
    pub(crate) fn body(&self) -> Value {
        let Parts {
            kind, param, code, ..
        } = self.parts();
        let mut error =
            json!({"message": self.to_string(), "type": kind, "param": param, "code": code});
        if let Self::Queue(of_queue) = self
            && let Some(hint) = of_queue.hint()
        {
            error["hint"] = hint.into();
        }
        json!({"error": error})
    }
}

impl From<ServerError> for HttpError {
    fn from(error: ServerError) -> Self {
        Self::Queue(Box::new(error))
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let parts = self.parts();
        let mut response = json_response(parts.status, &self.body());
        if let Some(wait) = parts.retry_after {
            let headers = response.headers_mut();
            headers.insert(RETRY_AFTER, wait.into());
        }
        if matches!(self, Self::Key) {
            let headers = response.headers_mut();
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A response of JSON.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    let json = HeaderValue::from_static("application/json");
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn too_many(code: &'static str, wait: u64) -> Parts<'static> {
    Parts {
        status: StatusCode::TOO_MANY_REQUESTS,
        kind: RATE,
        param: None,
        code: Some(code),
        retry_after: Some(wait.max(1)),
    }
}

fn message(error: &ServiceError) -> String {
    match error {
        ServiceError::UnknownModel { name, known } => unknown(name, known),
        error => error.to_string(),
    }
}

fn unknown(name: &str, known: &[String]) -> String {
    let similarity = |known: &str| strsim::jaro_winkler(known, name);
    let mut similar: Vec<(f64, &str)> = known
        .iter()
        .map(|known| (similarity(known), known.as_str()))
        .filter(|(similarity, _)| *similarity >= LEAST_SIMILARITY)
        .collect();
    similar.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let names: Vec<String> = similar
        .iter()
        .take(SIMILAR)
        .map(|(_, name)| format!("`{name}`"))
        .collect();
    let shown = shortened(name);
    if names.is_empty() {
        format!("the model `{shown}` does not exist")
    } else {
        let names = names.join(", ");
        format!("the model `{shown}` does not exist; similar names: {names}")
    }
}

/// The beginning of a text that a client sent, so that no message repeats a long body.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 200;
    let beginning = &text[..text.floor_char_boundary(MOST)];
    let dots = if beginning.len() < text.len() {
        "…"
    } else {
        ""
    };
    format!("{beginning}{dots}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_come_nearest_first() {
        let known = ["base", "sql-v1", "sql-v2", "poems", "sql-v22"].map(str::to_owned);
        assert_eq!(
            unknown("sql-v2x", &known),
            "the model `sql-v2x` does not exist; similar names: `sql-v2`, `sql-v22`, `sql-v1`"
        );
        assert_eq!(unknown("zzz", &known), "the model `zzz` does not exist");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shortened("aé"), "aé");
        assert_eq!(shortened(&"é".repeat(1000)).chars().count(), 101);
    }
}
