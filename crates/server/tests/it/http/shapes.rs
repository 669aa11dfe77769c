//! Responses have OpenAI's shapes.

use loraloom_inference::Replace;
use serde_json::{Value, json};

use super::{
    client::{get, post},
    fake::{CONTEXT, Script, start},
};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// The value with its random and changing parts replaced.
fn fixed(mut value: Value) -> Value {
    let id = value["id"].as_str().unwrap();
    let (prefix, rest) = id.split_once('-').unwrap();
    assert_eq!(rest.len(), 32, "{id}");
    value["id"] = prefix.into();
    assert!(value["created"].as_u64().unwrap() > 1_700_000_000);
    value["created"] = 0.into();
    value
}

#[test]
fn a_completion() {
    let server = start(|_| Script::Say(" the cat"));
    let body = json!({"model": "base", "prompt": "The dog", "user": "me", "seed": 3});
    let response = post(server.address, COMPLETIONS, &body);
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.header("content-type"), Some("application/json"));
    let prompt = server.tokenizer.encode_prompt("The dog").unwrap();
    let answer = server.tokenizer.encode(" the cat").unwrap().len() + 1;
    assert_eq!(
        fixed(response.json()),
        json!({
            "id": "cmpl", "object": "text_completion", "created": 0, "model": "base",
            "system_fingerprint": "g1",
            "choices": [{"index": 0, "text": " the cat", "logprobs": null, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": prompt.len(), "completion_tokens": answer,
                "total_tokens": prompt.len() + answer},
        })
    );
    let ask = &server.asks()[0];
    assert_eq!((&*ask.model, &ask.prompt), ("base", &prompt));
    assert_eq!(
        (ask.max_tokens, &*ask.stop, &*ask.tenant),
        (16, &[1][..], "default")
    );
    assert_eq!((ask.sampling.temperature, ask.sampling.seed), (1.0, 3));
}

#[test]
fn a_chat() {
    let server = start(|_| Script::Cut("It is a cat"));
    let body = json!({"model": "org/sql", "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Who"}, {"type": "text", "text": "?"}]},
    ], "stop_token_ids": [7]});
    let response = post(server.address, CHAT, &body);
    assert_eq!(response.status, 200, "{response:?}");
    let text = "<s><|system|>Be brief.<|user|>Who\n?<|assistant|>";
    let prompt = server.tokenizer.encode(text).unwrap();
    let answer = server.tokenizer.encode("It is a cat").unwrap().len();
    assert_eq!(
        fixed(response.json()),
        json!({
            "id": "chatcmpl", "object": "chat.completion", "created": 0, "model": "org/sql",
            "system_fingerprint": "g1",
            "choices": [{"index": 0, "logprobs": null, "finish_reason": "length",
                "message": {"role": "assistant", "content": "It is a cat", "refusal": null}}],
            "usage": {"prompt_tokens": prompt.len(), "completion_tokens": answer,
                "total_tokens": prompt.len() + answer},
        })
    );
    let ask = &server.asks()[0];
    assert_eq!(ask.prompt, prompt);
    assert_eq!(
        (ask.max_tokens, &*ask.stop),
        (CONTEXT - prompt.len(), &[1, 7][..])
    );
    // OpenAI's newer name of a role.
    let mut newer = body;
    newer["messages"][0]["role"] = json!("developer");
    assert_eq!(post(server.address, CHAT, &newer).status, 200);
    assert_eq!(server.asks()[1].prompt, prompt);
}

#[test]
fn prompts_have_four_forms_and_several_answers() {
    let server = start(|ask| Script::Tokens(vec![ask.prompt[0]; ask.sampling.seed as usize]));
    let texts = |prompt: Value, n: usize| {
        let body =
            json!({"model": "base", "prompt": prompt, "n": n, "seed": 1, "ignore_eos": true});
        let response = post(server.address, COMPLETIONS, &body).json();
        let choices = response["choices"]
            .as_array()
            .unwrap_or_else(|| panic!("{response}"))
            .clone();
        let indices: Vec<&Value> = choices.iter().map(|choice| &choice["index"]).collect();
        let expected: Vec<Value> = (0..choices.len()).map(Value::from).collect();
        assert_eq!(indices, expected.iter().collect::<Vec<_>>());
        let text = |choice: &Value| choice["text"].as_str().unwrap().to_owned();
        (
            choices.iter().map(text).collect::<Vec<_>>(),
            response["usage"]["prompt_tokens"].clone(),
        )
    };
    // Tokens 6 and 7 are `!` and `"`.
    assert_eq!(texts(json!([6]), 1), (vec!["!".to_owned()], json!(1)));
    let four = ["!", "!!", "\"", "\"\""].map(str::to_owned).to_vec();
    assert_eq!(texts(json!([[6], [7, 8]]), 2), (four, json!(3)));
    assert_eq!(texts(json!(["a", "b"]), 1).0.len(), 2);
    assert!(server.asks().iter().all(|ask| ask.stop.is_empty()));
}

#[test]
fn log_probs_of_a_completion() {
    let server = start(|_| Script::Tokens(vec![6, 7]));
    let body = json!({"model": "base", "prompt": [5], "logprobs": 1});
    let response = post(server.address, COMPLETIONS, &body).json();
    let text = |id: u32| server.tokenizer.decode(&[id], false).unwrap();
    assert_eq!(
        response["choices"][0]["logprobs"],
        json!({
            "tokens": ["!", "\""], "token_logprobs": [-0.5, -0.5], "text_offset": [0, 1],
            "top_logprobs": [{"!": -0.5, text(10): -1.0}, {"\"": -0.5, text(10): -1.0}],
        })
    );
}

#[test]
fn log_probs_of_a_chat() {
    let server = start(|_| Script::Tokens(vec![6]));
    let body = json!({"model": "base", "messages": [{"role": "user", "content": "a"}],
        "logprobs": true, "top_logprobs": 2});
    let response = post(server.address, CHAT, &body).json();
    let top = |id: u32, value: f32| {
        let text = server.tokenizer.decode(&[id], false).unwrap();
        json!({"token": text, "logprob": value, "bytes": text.as_bytes()})
    };
    assert_eq!(
        response["choices"][0]["logprobs"],
        json!({"refusal": null, "content": [{"token": "!", "logprob": -0.5, "bytes": [33],
            "top_logprobs": [top(10, -1.0), top(11, -2.0)]}]})
    );
}

#[test]
fn parts_of_a_character_have_bytes() {
    let bird = "\u{1f99c}";
    let server = start(move |_| Script::Say(bird));
    let body =
        json!({"model": "base", "messages": [{"role": "user", "content": "a"}], "logprobs": true});
    let response = post(server.address, CHAT, &body).json();
    let parts = response["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .clone();
    assert!(parts.len() > 1, "{parts:?}");
    let bytes = parts
        .iter()
        .flat_map(|part| part["bytes"].as_array().unwrap());
    let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
    assert_eq!(bytes, bird.as_bytes());
    assert!(
        parts[0]["token"].as_str().unwrap().starts_with("\\xf0"),
        "{parts:?}"
    );
    let body = json!({"model": "base", "prompt": "a", "logprobs": 1});
    let response = post(server.address, COMPLETIONS, &body).json();
    let log_probs = &response["choices"][0]["logprobs"];
    let tokens = &log_probs["tokens"];
    let likeliest = log_probs["top_logprobs"][0].as_object().unwrap();
    assert!(
        likeliest.contains_key(tokens[0].as_str().unwrap()),
        "{log_probs}"
    );
    assert!(
        tokens[0].as_str().unwrap().starts_with("bytes:\\xf0"),
        "{tokens}"
    );
}

#[test]
fn a_stop_string_ends_the_text_and_cancels_the_answer() {
    let server = start(|_| Script::Forever);
    for (path, prompt) in [
        (COMPLETIONS, json!({"prompt": "a"})),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "a"}]}),
        ),
    ] {
        let mut body = json!({"model": "base", "stop": ["s yes ye", "no"]});
        body.as_object_mut()
            .unwrap()
            .extend(prompt.as_object().unwrap().clone());
        let response = post(server.address, path, &body).json();
        let choice = &response["choices"][0];
        let text = if path == CHAT {
            &choice["message"]["content"]
        } else {
            &choice["text"]
        };
        assert_eq!(
            (text, &choice["finish_reason"]),
            (&json!(" ye"), &json!("stop"))
        );
    }
    server.wait_for_cancelled(2);
}

#[test]
fn models() {
    let server = start(|_| Script::Say(""));
    let list = get(server.address, "/v1/models").json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "base");
    assert_eq!(list["data"][0]["parent"], Value::Null);
    let one = get(server.address, "/v1/models/org/sql").json();
    assert_eq!(one, list["data"][1]);
    assert_eq!(get(server.address, "/v1/models/org%2Fsql").json(), one);
    assert_eq!(
        (&one["object"], &one["parent"]),
        (&json!("model"), &json!("base"))
    );
    assert_eq!(
        (&one["owned_by"], &one["system_fingerprint"]),
        (&json!("loraloom"), &json!("g1"))
    );
}

#[test]
fn adapters_are_loaded_and_unloaded() {
    let server = start(|_| Script::Say(""));
    let load = |more: Value| {
        let mut body = json!({"lora_name": "new", "lora_path": "/adapters/new"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let response = post(server.address, "/v1/load_lora_adapter", &body);
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(
            response.body,
            "Success: LoRA adapter 'new' added successfully."
        );
    };
    load(json!({}));
    load(json!({"load_inplace": true}));
    load(json!({"load_inplace": true, "expected_generation": "g1"}));
    let replaces: Vec<Replace> = server
        .loads()
        .into_iter()
        .map(|(_, _, replaces)| replaces)
        .collect();
    let generation = Replace::Generation("g1".to_owned());
    assert_eq!(replaces, [Replace::Nothing, Replace::Anything, generation]);
    let body = json!({"lora_name": "org/sql"});
    let response = post(server.address, "/v1/unload_lora_adapter", &body);
    assert_eq!(
        response.body,
        "Success: LoRA adapter 'org/sql' removed successfully."
    );
}

#[test]
fn health_and_metrics() {
    let server = start(|_| Script::Say("a"));
    assert_eq!(get(server.address, "/health").status, 200);
    post(
        server.address,
        COMPLETIONS,
        &json!({"model": "base", "prompt": "a"}),
    );
    get(server.address, "/nowhere/1");
    let page = get(server.address, "/metrics");
    assert_eq!(
        page.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    for line in [
        "loraloom_requests_running 3",
        "loraloom_kv_cache_usage_perc 0.25",
        "loraloom_adapter_fetches_total 7",
        "loraloom_prompt_tokens_total 11",
        "loraloom_generation_tokens_total 13",
        "loraloom_time_to_first_token_seconds_count 1",
        "loraloom_http_requests_total{path=\"/v1/completions\",status=\"200\"} 1",
        "loraloom_http_requests_total{path=\"other\",status=\"404\"} 1",
    ] {
        assert!(
            page.body.lines().any(|other| other == line),
            "{line} is not in {}",
            page.body
        );
    }
}
