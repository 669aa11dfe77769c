//! The page for people.

use std::fs;

use loraloom_server::http::{HttpLimits, Keys};

use super::{
    client::get,
    fake::{Script, start, start_with},
};

#[test]
fn the_page_runs_its_own_script_and_asks_its_own_server() {
    let server = start(|_| Script::Say(""));
    let mut nonces = Vec::new();
    for _ in 0..2 {
        let response = get(server.address, "/");
        assert_eq!(response.status, 200);
        assert_eq!(
            response.header("content-type"),
            Some("text/html; charset=utf-8")
        );
        for (name, value) in [
            ("cache-control", "no-store"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
        ] {
            assert_eq!(response.header(name), Some(value));
        }
        let policy = response.header("content-security-policy").unwrap();
        let (_, rest) = policy.split_once("script-src 'nonce-").unwrap();
        let (nonce, _) = rest.split_once('\'').unwrap();
        assert_eq!(nonce.len(), 32);
        let expected = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
             img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        assert_eq!(policy, expected);
        for element in ["script", "style"] {
            let tag = format!("<{element} nonce=\"{nonce}\">");
            assert_eq!(response.body.matches(&tag).count(), 1);
            assert_eq!(response.body.matches(&format!("<{element}")).count(), 1);
        }
        assert!(!response.body.contains("{{"));
        assert!(response.body.contains("--series-0:"));
        nonces.push(nonce.to_owned());
    }
    assert_ne!(nonces[0], nonces[1]);
}

#[test]
fn the_page_needs_no_key_and_asks_for_one() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "sk-1 team\n").unwrap();
    let keys = Keys::load(file.path()).unwrap();
    let server = start_with(HttpLimits::default(), Some(keys), |_| Script::Say(""));
    let response = get(server.address, "/");
    assert_eq!(response.status, 200);
    assert!(
        response
            .body
            .contains("data-keys=\"yes\" data-queue=\"no\"")
    );
    assert!(!response.body.contains("sk-1"));
    let open = start(|_| Script::Say(""));
    assert!(get(open.address, "/").body.contains("data-keys=\"no\""));
}
