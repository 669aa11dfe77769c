//! Every error has OpenAI's body and a status.

use loraloom_inference::{InferenceError, ServiceError};
use serde_json::{Value, json};

use super::{
    client::{get, post, receive, send, start as begin},
    fake::{CONTEXT, Script, Server, start},
};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const INVALID: &str = "invalid_request_error";

fn refusing(refuse: fn(&[u32]) -> ServiceError) -> Server {
    start(move |ask| Script::Refuse(refuse(&ask.prompt)))
}

fn completion() -> Value {
    json!({"model": "base", "prompt": "a"})
}

fn error(status: u16, kind: &str, param: Value, code: Value) -> (u16, String, Value, Value) {
    (status, kind.to_owned(), param, code)
}

#[test]
fn unknown_models_and_routes() {
    let server = start(|_| Script::Say(""));
    let body = json!({"model": "org/sq", "prompt": "a"});
    let response = post(server.address, COMPLETIONS, &body);
    let expected = error(404, INVALID, json!("model"), json!("model_not_found"));
    assert_eq!(response.error(), expected);
    let message = &response.json()["error"]["message"];
    assert_eq!(
        message,
        "the model `org/sq` does not exist; similar names: `org/sql`"
    );
    assert_eq!(get(server.address, "/v1/models/basis").error(), expected);
    let body = json!({"lora_name": "zzz"});
    assert_eq!(
        post(server.address, "/v1/unload_lora_adapter", &body).error(),
        expected
    );
    let expected = error(404, INVALID, Value::Null, Value::Null);
    assert_eq!(get(server.address, "/v1/nowhere").error(), expected);
    let expected = error(405, INVALID, Value::Null, Value::Null);
    assert_eq!(get(server.address, COMPLETIONS).error(), expected);
    assert_eq!(get(server.address, "/v1/models/%FF").status, 400);
}

#[test]
fn bodies_that_are_not_json() {
    let server = start(|_| Script::Say(""));
    let bodies: [&[u8]; 7] = [
        b"",
        b"{",
        b"nonsense",
        b"[1]",
        b"{\"model\": \"base\", \"prompt\": \"\xFF\xFE\"}",
        b"{\"model\": \"base\", \"prompt\": \"\\ud800\"}",
        b"{\"model\": \"base\", \"prompt\": \"a\"} x",
    ];
    for path in [
        COMPLETIONS,
        CHAT,
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    ] {
        for body in bodies {
            let response = receive(begin(server.address, path, body));
            let (status, kind, ..) = response.error();
            assert_eq!((status, &*kind), (400, INVALID), "{path} {body:?}");
        }
        let deep = "[".repeat(1_000_000);
        assert_eq!(
            receive(begin(server.address, path, deep.as_bytes())).status,
            400
        );
    }
    let head = format!("POST {COMPLETIONS} HTTP/1.1\r\nContent-Type: text/plain");
    let response = receive(send(
        server.address,
        &head,
        completion().to_string().as_bytes(),
    ));
    assert_eq!(
        response.error(),
        error(415, INVALID, Value::Null, Value::Null)
    );
    assert!(server.asks().is_empty());
}

#[test]
fn fields_are_named() {
    let server = start(|_| Script::Say(""));
    let refused = |path: &str, base: &Value, field: &str, value: Value, param: &str| {
        let mut body = base.clone();
        match value {
            Value::Null => drop(body.as_object_mut().unwrap().remove(field)),
            value => body[field] = value,
        }
        let (status, kind, found, _) = post(server.address, path, &body).error();
        assert_eq!(
            (status, &*kind, found),
            (400, INVALID, json!(param)),
            "{body}"
        );
    };
    let chat = json!({"model": "base", "messages": [{"role": "user", "content": "a"}]});
    for (field, value) in [
        ("frobnicate", json!(1)),
        ("model", Value::Null),
        ("prompt", Value::Null),
        ("prompt", json!([])),
        ("prompt", json!([1280])),
        ("messages", json!([])),
        ("temperature", json!("hot")),
        ("temperature", json!(-0.5)),
        ("top_p", json!(0)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(1.5)),
        ("n", json!(129)),
        ("logprobs", json!(21)),
        ("best_of", json!(2)),
        ("echo", json!(true)),
        ("suffix", json!("z")),
        ("logit_bias", json!({"1": 1})),
        ("presence_penalty", json!(1)),
        ("frequency_penalty", json!(1)),
    ] {
        refused(COMPLETIONS, &completion(), field, value, field);
    }
    for (field, value, param) in [
        ("prompt", json!("a"), "prompt"),
        ("messages", Value::Null, "messages"),
        ("messages", json!([]), "messages"),
        (
            "messages",
            json!([{"role": "robot", "content": "a"}]),
            "messages[0].role",
        ),
        ("messages", json!([{"role": "user"}]), "messages[0].content"),
        (
            "messages",
            json!([{"role": "user", "content": 5}]),
            "messages[0].content",
        ),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]),
            "messages[0].content",
        ),
        (
            "messages",
            json!([{"role": "user", "content": "a", "name": "Eve"}]),
            "messages[0].name",
        ),
        (
            "messages",
            json!([{"role": "user", "content": "a", "reasoning_content": "b"}]),
            "messages[0].reasoning_content",
        ),
        (
            "messages",
            json!([{"role": "user", "content": "a", "reasoning": "b"}]),
            "messages[0].reasoning",
        ),
        ("tools", json!([{"type": "function"}]), "tools"),
        (
            "response_format",
            json!({"type": "json_object"}),
            "response_format",
        ),
        ("top_logprobs", json!(3), "top_logprobs"),
        ("logprobs", json!(3), "logprobs"),
    ] {
        refused(CHAT, &chat, field, value, param);
    }
    let two = json!({"model": "base", "prompt": ["a", "b"], "n": 65});
    assert_eq!(
        post(server.address, COMPLETIONS, &two).error().2,
        json!("n")
    );
    assert!(server.asks().is_empty());
}

#[test]
fn fields_that_ask_for_more_are_named() {
    let server = start(|_| Script::Say(""));
    for (field, value) in [
        ("stream_options", json!({"include_usage": true})),
        ("prediction", json!({"type": "content"})),
        ("modalities", json!(["audio"])),
        ("web_search_options", json!({"a": 1})),
        ("audio", json!({"voice": "a"})),
        ("reasoning_effort", json!("low")),
        ("verbosity", json!("low")),
        ("prompt_logprobs", json!(1)),
        ("truncate_prompt_tokens", json!(5)),
        ("min_tokens", json!(3)),
        ("use_beam_search", json!(true)),
        ("skip_special_tokens", json!(false)),
        ("add_generation_prompt", json!(false)),
        ("continue_final_message", json!(true)),
    ] {
        let mut body = completion();
        body[field] = value;
        let (status, _, found, _) = post(server.address, COMPLETIONS, &body).error();
        assert_eq!((status, found), (400, json!(field)), "{body}");
    }
}

#[test]
fn harmless_fields_are_taken() {
    let server = start(|_| Script::Say("a"));
    let mut body = completion();
    let harmless = json!({"user": "me", "metadata": {"a": 1}, "store": true, "service_tier": "auto",
        "prediction": null, "min_tokens": 0, "skip_special_tokens": true, "modalities": ["text"],
        "reasoning_effort": null, "best_of": 1, "echo": false, "suffix": null,
        "presence_penalty": 0, "logit_bias": {}, "stop": null, "logprobs": null});
    body.as_object_mut()
        .unwrap()
        .extend(harmless.as_object().unwrap().clone());
    let response = post(server.address, COMPLETIONS, &body);
    assert_eq!(response.status, 200, "{response:?}");
}

#[test]
fn the_service_refuses() {
    let ask = |refuse| post(refusing(refuse).address, COMPLETIONS, &completion());
    let response = ask(|_| ServiceError::Busy { waiting: 9 });
    assert_eq!(response.error().0, 429);
    assert_eq!(response.header("retry-after"), Some("1"));
    let too_long = |prompt: &[u32]| {
        ServiceError::Refused(InferenceError::PromptTooLong {
            prompt: prompt.len(),
            context: CONTEXT,
        })
    };
    let expected = error(400, INVALID, Value::Null, json!("context_length_exceeded"));
    assert_eq!(ask(too_long).error(), expected);
    let expected = error(400, INVALID, Value::Null, Value::Null);
    assert_eq!(
        ask(|_| ServiceError::Refused(InferenceError::EmptyPrompt)).error(),
        expected
    );
    let response = ask(|_| ServiceError::Failed("broken".to_owned()));
    assert_eq!(
        response.error(),
        error(500, "server_error", Value::Null, Value::Null)
    );
    let response = ask(|_| ServiceError::Stopped);
    assert_eq!(
        response.error(),
        error(503, "server_error", Value::Null, Value::Null)
    );
    let server = start(|_| Script::Fail("so far"));
    assert_eq!(post(server.address, COMPLETIONS, &completion()).status, 500);
}

#[test]
fn answers_that_were_not_limited_fit_in_the_memory() {
    let server = start(|ask| {
        let (prompt, answer) = (ask.prompt.len(), ask.max_tokens);
        if answer > 20 {
            let tokens = 30;
            Script::Refuse(ServiceError::Refused(InferenceError::TooLarge {
                prompt,
                answer,
                tokens,
            }))
        } else {
            Script::Say("a")
        }
    });
    let content = "twelve of the tokens that there are here";
    let mut body = json!({"model": "base", "messages": [{"role": "user", "content": content}]});
    let response = post(server.address, CHAT, &body);
    assert_eq!(response.status, 200, "{response:?}");
    let asks = server.asks();
    assert_eq!(asks[1].max_tokens, 31 - asks[1].prompt.len());
    body["max_tokens"] = json!(100);
    let (status, .., code) = post(server.address, CHAT, &body).error();
    assert_eq!((status, code), (400, json!("context_length_exceeded")));
}

#[test]
fn adapters_that_cannot_be_loaded() {
    let server = start(|_| Script::Say(""));
    let load = |name: &str| {
        let body = json!({"lora_name": name, "lora_path": "/nowhere"});
        post(server.address, "/v1/load_lora_adapter", &body).error()
    };
    let code = Value::Null;
    assert_eq!(
        load("taken"),
        error(400, INVALID, json!("lora_name"), code.clone())
    );
    for name in ["a@live", "a@last", "a@best", "a@7"] {
        let refused = error(400, INVALID, json!("lora_name"), code.clone());
        assert_eq!(load(name), refused, "{name}");
    }
    assert_eq!(
        load("broken"),
        error(400, INVALID, json!("lora_path"), code.clone())
    );
    assert_eq!(
        load("newer"),
        error(409, INVALID, json!("expected_generation"), code.clone())
    );
    assert_eq!(
        load(""),
        error(400, INVALID, json!("lora_name"), code.clone())
    );
    let body = json!({"lora_name": "a", "lora_path": "/a", "base_model_name": "b"});
    let response = post(server.address, "/v1/load_lora_adapter", &body);
    assert_eq!(
        response.error(),
        error(400, INVALID, json!("base_model_name"), code)
    );
}

#[test]
fn a_prompt_of_a_megabyte_is_counted_by_the_service() {
    let server = refusing(|prompt| {
        let (prompt, context) = (prompt.len(), CONTEXT);
        ServiceError::Refused(InferenceError::PromptTooLong { prompt, context })
    });
    let body = json!({"model": "base", "prompt": "the cat ".repeat(1 << 17)});
    let (status, .., code) = post(server.address, COMPLETIONS, &body).error();
    assert_eq!((status, code), (400, json!("context_length_exceeded")));
    assert!(server.asks()[0].prompt.len() > 1 << 17);
}
