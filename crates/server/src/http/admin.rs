use std::sync::Arc;

use axum::{Extension, RequestPartsExt, extract::FromRequestParts, http::request::Parts};

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
        authorize(state, &caller, peer)?;
        Ok(Self)
    }
}

/// A path is one of the server's files, so not everybody may have it loaded or trained on.
fn authorize(state: &HttpState, caller: &Caller, peer: Peer) -> Result<(), HttpError> {
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
