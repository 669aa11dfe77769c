//! Keys, tenants and their limits.

use std::fs;

use loraloom_server::http::{HttpLimits, Keys};
use serde_json::{Value, json};

use super::{
    client::{get, post, post_with, receive, send},
    fake::{Script, Server, start_with},
};

const COMPLETIONS: &str = "/v1/completions";
const LOAD: &str = "/v1/load_lora_adapter";

fn server(keys: &str) -> Server {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), keys).unwrap();
    let keys = Keys::load(file.path()).unwrap();
    start_with(HttpLimits::default(), Some(keys), |_| Script::Say("a b c"))
}

fn completion() -> Value {
    json!({"model": "base", "prompt": "a"})
}

#[test]
fn requests_need_a_key() {
    let server = server("sk-1 team\n");
    for path in ["/v1/models", "/metrics"] {
        let response = get(server.address, path);
        let (status, kind, _, code) = response.error();
        assert_eq!(
            (status, &*kind, code),
            (401, "invalid_request_error", json!("invalid_api_key"))
        );
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(post(server.address, COMPLETIONS, &completion()).status, 401);
    for key in ["sk-2", "sk-", "sk-11", ""] {
        assert_eq!(
            post_with(server.address, key, COMPLETIONS, &completion()).status,
            401,
            "{key}"
        );
    }
    for value in ["sk-1", "Basic sk-1", "Bearer", "Bearer \u{e9}"] {
        let head = format!("GET /v1/models HTTP/1.1\r\nAuthorization: {value}");
        assert_eq!(
            receive(send(server.address, &head, b"")).status,
            401,
            "{value}"
        );
    }
    assert_eq!(get(server.address, "/health").status, 200);
    assert_eq!(
        post_with(server.address, "sk-1", COMPLETIONS, &completion()).status,
        200
    );
    assert_eq!(server.asks()[0].tenant, "team");
}

#[test]
fn a_key_gives_its_tenant_a_weight() {
    let server = server("sk-1 team weight=3\nsk-2 other\n");
    for (key, weight) in [("sk-1", 3.0), ("sk-2", 1.0)] {
        post_with(server.address, key, COMPLETIONS, &completion());
        let asks = server.asks();
        assert!((asks[asks.len() - 1].weight - weight).abs() < 1e-9, "{key}");
    }
}

#[test]
fn adapters_need_a_key_without_restriction() {
    let server = server("alone\nrestricted team\nboss team admin requests_per_minute=1\n");
    let body = json!({"lora_name": "new", "lora_path": "/new"});
    for (key, status) in [
        ("alone", 200),
        ("restricted", 403),
        ("boss", 200),
        ("other", 401),
    ] {
        assert_eq!(
            post_with(server.address, key, LOAD, &body).status,
            status,
            "{key}"
        );
        let body = json!({"lora_name": "org/sql"});
        let response = post_with(server.address, key, "/v1/unload_lora_adapter", &body);
        assert_eq!(response.status, status, "{key}");
    }
    assert_eq!(server.loads().len(), 2);
}

#[test]
fn limits_a_minute_are_kept() {
    let server = server(
        "few a requests_per_minute=2\nshort b tokens_per_minute=3\nlong c tokens_per_minute=3\n",
    );
    let ask = |key: &str| post_with(server.address, key, COMPLETIONS, &completion());
    assert_eq!((ask("few").status, ask("few").status), (200, 200));
    let response = ask("few");
    let (status, kind, _, code) = response.error();
    assert_eq!(
        (status, &*kind, code),
        (429, "rate_limit_error", json!("rate_limit_exceeded"))
    );
    let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
    assert!((20..=30).contains(&wait), "{wait}");
    // An answer may overdraw the limit; the next request waits.
    assert_eq!(ask("short").status, 200);
    let response = ask("short");
    assert_eq!(response.status, 429);
    let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
    assert!(wait > 20, "{wait}");
    assert_eq!(server.asks().len(), 3);
    // Tokens of the prompt count, too: these take most of an hour.
    let long = json!({"model": "base", "prompt": vec![5; 150], "max_tokens": 1});
    assert_eq!(
        post_with(server.address, "long", COMPLETIONS, &long).status,
        200
    );
    let response = ask("long");
    let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
    assert!(wait > 2000, "{wait}");
}
