//! The page of a server: its models, its tasks while they train, and a prompt for several models at once.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{
        HeaderName,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
            X_CONTENT_TYPE_OPTIONS,
        },
    },
};

use super::{options::random, state::HttpState};

const HTML: &str = include_str!("page.html");

/// `GET /`. It needs no key: it holds nothing of the server, and asks for the rest with a key that it is given.
pub(crate) async fn page(
    State(state): State<Arc<HttpState>>,
) -> ([(HeaderName, String); 5], String) {
    // Names and answers are untrusted. If one of them became an element, it could not run without the nonce.
    let nonce = format!("{:016x}{:016x}", random(), random());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let page = HTML
        .replace("{{nonce}}", &nonce)
        .replace("{{keys}}", word(state.keys.is_some()))
        .replace("{{queue}}", word(state.queue.is_some()))
        .replace("{{colours}}", &loraloom_chart::css_variables());
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (CONTENT_SECURITY_POLICY, policy),
        (CACHE_CONTROL, "no-store".to_owned()),
        (REFERRER_POLICY, "no-referrer".to_owned()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    (headers, page)
}

fn word(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}
