use std::{net::IpAddr, sync::Arc};

use axum::{
    Extension, RequestPartsExt,
    extract::FromRequestParts,
    http::{header::HOST, request::Parts},
};

use super::{connections::Peer, error::HttpError, key::Caller, state::HttpState};

/// The sender of a request, who may change adapters and tasks.
pub(crate) struct Admin;

impl FromRequestParts<Arc<HttpState>> for Admin {
    type Rejection = HttpError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<HttpState>,
    ) -> Result<Self, HttpError> {
        let missing = |error: &dyn std::fmt::Display| HttpError::Internal(error.to_string());
        let caller = parts.extract::<Extension<Arc<Caller>>>().await;
        let Extension(caller) = caller.map_err(|error| missing(&error))?;
        let peer = parts.extract::<Extension<Peer>>().await;
        let Extension(peer) = peer.map_err(|error| missing(&error))?;
        let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
        authorize(state, &caller, peer, host)?;
        Ok(Self)
    }
}

/// A path is one of the server's files, so not everybody may have it loaded or trained on.
fn authorize(
    state: &HttpState,
    caller: &Caller,
    peer: Peer,
    host: Option<&str>,
) -> Result<(), HttpError> {
    if !caller.is_admin {
        return Err(HttpError::NotAdmin);
    }
    let is_local = || peer.0.ip().to_canonical().is_loopback() && host.is_some_and(is_own);
    if state.keys.is_none() && !is_local() {
        return Err(HttpError::NotLocal);
    }
    Ok(())
}

/// True if the host of a request is this machine and not a name that somebody else may point at it, as pages of other
/// sites do (DNS rebinding).
fn is_own(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) {
            name
        } else {
            host
        }
    });
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let address: Option<IpAddr> = address.parse().ok();
    name.eq_ignore_ascii_case("localhost") || address.is_some_and(|address| address.is_loopback())
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
            authorize(&state, &state.anonymous, peer, Some("localhost:8000")).is_ok()
        };
        assert!(may("127.0.0.1:5") && may("[::1]:5") && may("[::ffff:127.0.0.1]:5"));
        let rebound = Peer("127.0.0.1:5".parse().unwrap());
        assert!(authorize(&state, &state.anonymous, rebound, Some("evil.example")).is_err());
        assert!(!may("192.168.0.7:5") && !may("[2001:db8::1]:5") && !may("[::ffff:8.8.8.8]:5"));
    }

    #[test]
    fn names_that_others_point_here_are_not_this_machine() {
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:8000",
            "127.3.2.1",
            "[::1]",
            "[::1]:8000",
        ] {
            assert!(is_own(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "10.0.0.1:80",
            "127.0.0.1.evil.example",
        ] {
            assert!(!is_own(host), "{host}");
        }
    }
}
