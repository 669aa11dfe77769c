use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, header::CONTENT_TYPE},
};
use http_body_util::BodyExt;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::timeout;

use super::{error::HttpError, fields::parse, state::HttpLimits};

/// A body that is longer than this many times the limit is not read to its end.
const READ: usize = 8;

/// The JSON of a request.
///
/// # Errors
/// Another type of content, a body that is too long, slow, incomplete, or does not fit.
pub(crate) async fn json<T: DeserializeOwned>(
    request: Request,
    limits: &HttpLimits,
) -> Result<T, HttpError> {
    parse(&bytes(request, limits).await?)
}

/// The text of a request of JSON.
///
/// # Errors
/// Another type of content, a body that is too long, slow, incomplete, or no text.
pub(crate) async fn text(request: Request, limits: &HttpLimits) -> Result<String, HttpError> {
    let text = String::from_utf8(bytes(request, limits).await?);
    text.map_err(|error| HttpError::Body {
        reason: error.to_string(),
    })
}

/// Reads a request that has no fields.
///
/// # Errors
/// Another type of content, or a body with a field.
pub(crate) async fn nothing(request: Request, limits: &HttpLimits) -> Result<(), HttpError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    let bytes = bytes(request, limits).await?;
    if !bytes.is_empty() {
        let Nothing {} = parse(&bytes)?;
    }
    Ok(())
}

async fn bytes(request: Request, limits: &HttpLimits) -> Result<Vec<u8>, HttpError> {
    // A page in a browser can send other types to a server on the same machine without being asked.
    if !is_json(request.headers()) {
        return Err(HttpError::MediaType);
    }
    let limit = limits.read;
    let body = timeout(limit, body(request.into_body(), limits.body_bytes)).await;
    body.map_err(|_| HttpError::BodyTimeout { limit })?
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(|value| value.to_str());
    let Some(Ok(value)) = value else {
        return false;
    };
    let name = value.split(';').next().unwrap_or_default();
    name.trim().eq_ignore_ascii_case("application/json")
}

/// All bytes of a body. One that is too long is read on for a while, because many clients read the response only when
/// they have sent it.
async fn body(mut body: Body, limit: usize) -> Result<Vec<u8>, HttpError> {
    let (mut bytes, mut length) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| HttpError::BodyIncomplete {
            reason: error.to_string(),
        })?;
        let data: Bytes = frame.into_data().unwrap_or_default();
        length += data.len();
        if length <= limit {
            bytes.extend_from_slice(&data);
        } else if length > limit.saturating_mul(READ) {
            break;
        } else {
            bytes = Vec::new();
        }
    }
    if length > limit {
        return Err(HttpError::BodyTooLarge { limit });
    }
    Ok(bytes)
}
