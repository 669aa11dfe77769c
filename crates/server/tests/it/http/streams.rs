//! Server-sent events.

use serde_json::{Value, json};

use super::{
    client::post,
    fake::{Script, Server, start},
};

fn chat(server: &Server, more: Value) -> Vec<Value> {
    let mut body = json!({"model": "base", "stream": true,
        "messages": [{"role": "user", "content": "a"}]});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    post(server.address, "/v1/chat/completions", &body).events()
}

fn text(events: &[Value], index: usize) -> String {
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    let choices = choices.filter(|choice| choice["index"] == index);
    let text = |choice: &Value| {
        let text = if choice["text"].is_null() {
            &choice["delta"]["content"]
        } else {
            &choice["text"]
        };
        text.as_str().unwrap_or_default().to_owned()
    };
    choices.map(text).collect()
}

#[test]
fn a_chat_begins_with_its_role_and_ends_with_its_reason() {
    let server = start(|_| Script::Say("one two"));
    let events = chat(&server, json!({}));
    let first = &events[0];
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(
        (&first["model"], &first["system_fingerprint"]),
        (&json!("base"), &json!("g1"))
    );
    assert_eq!(
        first["choices"],
        json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
            "finish_reason": null}])
    );
    let last = &events[events.len() - 1]["choices"];
    assert_eq!(
        *last,
        json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"}])
    );
    assert_eq!(text(&events, 0), "one two");
    for event in &events {
        assert_eq!(
            (&event["id"], &event["created"]),
            (&first["id"], &first["created"])
        );
        assert!(event.get("usage").is_none());
    }
}

#[test]
fn usage_is_the_last_chunk_if_asked_for() {
    let server = start(|_| Script::Tokens(vec![6, 7]));
    let events = chat(&server, json!({"stream_options": {"include_usage": true}}));
    let (last, others) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 3);
    assert!(others.iter().all(|event| event["usage"].is_null()));
    assert!(others.iter().all(|event| event.get("usage").is_some()));
}

#[test]
fn a_completion_streams_each_of_its_answers() {
    let server = start(|ask| Script::Tokens(vec![ask.prompt[0]; 3]));
    let body = json!({"model": "base", "prompt": [[6], [7]], "stream": true, "logprobs": 0});
    let events = post(server.address, "/v1/completions", &body).events();
    assert_eq!(
        (text(&events, 0), text(&events, 1)),
        ("!!!".to_owned(), "\"\"\"".to_owned())
    );
    let mut offsets = Vec::new();
    for event in &events {
        assert_eq!(event["object"], "text_completion");
        let choice = &event["choices"][0];
        if choice["index"] == 1 && choice["finish_reason"].is_null() {
            assert_eq!(choice["logprobs"]["tokens"], json!(["\""]));
            offsets.push(choice["logprobs"]["text_offset"][0].as_u64().unwrap());
        }
    }
    assert_eq!(offsets, [0, 1, 2]);
    let reasons = events
        .iter()
        .filter(|event| event["choices"][0]["finish_reason"] == "stop");
    assert_eq!(reasons.count(), 2);
}

#[test]
fn stop_strings_across_tokens_are_never_shown() {
    let server = start(|_| Script::Forever);
    let events = chat(&server, json!({"stop": "es yes y"}));
    assert_eq!(text(&events, 0), " y");
    server.wait_for_cancelled(1);
    // A beginning of a stop string that does not go on is shown.
    let server = start(|_| Script::Say("a b c a b d"));
    let events = chat(&server, json!({"stop": ["b d e", "b c b"]}));
    assert_eq!(text(&events, 0), "a b c a b d");
}

#[test]
fn characters_are_whole_in_every_event() {
    let server = start(|_| Script::Say("é 🦀🦀 ."));
    let events = chat(&server, json!({}));
    assert_eq!(text(&events, 0), "é 🦀🦀 .");
    assert!(
        events
            .iter()
            .all(|event| !event.to_string().contains('\u{FFFD}'))
    );
}

#[test]
fn a_failure_is_an_event() {
    let server = start(|_| Script::Fail("so far"));
    let events = chat(&server, json!({}));
    assert_eq!(text(&events, 0), "so far");
    let error = &events[events.len() - 1]["error"];
    assert_eq!(
        (&error["message"], &error["type"]),
        (&json!("a device is gone"), &json!("server_error"))
    );
}
