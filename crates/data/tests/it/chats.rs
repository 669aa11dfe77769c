//! Rows that are conversations: templates, whose turns are trained on, what is refused.

use crate::common::{CHATML, load, load_with, masked, model};
use loraloom_config::ColumnMap;
use loraloom_data::{DataError, RowError, TemplateError};

#[test]
fn a_template_over_messages_replaces_the_tokenizers() {
    let row = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
    let dataset = load_with("rows.jsonl", row, |config| {
        config.columns = Some(ColumnMap::Messages {
            messages: "messages".into(),
        });
        config.template = Some(
            "{{ bos_token }}{% for m in messages %}{{ m.content }}\
             {% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
                .into(),
        );
    })
    .unwrap();
    let (_directory, tokenizer) = model(None);
    assert_eq!(masked(&dataset, &tokenizer, false), ["<s>a⟦b</s>⟧"]);
}

#[test]
fn messages_say_themselves_whether_they_are_trained_on() {
    let (_directory, tokenizer) = model(Some(CHATML));
    let chat = |first: &str, third: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"a"{first}}},{{"role":"assistant","content":"b"{third}}},{{"role":"user","content":"c"}},{{"role":"assistant","content":"d"}}]}}"#
        )
    };
    let turn = "<|im_end|>\n<|im_start|>";
    for flag in [
        r#","train":false"#,
        r#","training":false"#,
        r#","weight":0"#,
    ] {
        let dataset = load("rows.jsonl", chat("", flag)).unwrap();
        let text = format!(
            "<s><|im_start|>user\na{turn}assistant\nb{turn}user\nc{turn}assistant\n⟦d<|im_end|>\n⟧"
        );
        assert_eq!(masked(&dataset, &tokenizer, false), [text]);
    }
    let dataset = load("rows.jsonl", chat(r#","train":true"#, r#","weight":1.0"#)).unwrap();
    let text = masked(&dataset, &tokenizer, false).remove(0);
    assert!(
        text.starts_with("<s>⟦<|im_start|>user\na<|im_end|>\n⟧<|im_start|>assistant\n⟦b"),
        "{text}"
    );
    // Also where the template marks what the assistant says.
    let marked = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}\
                  {{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}\
                  {% if add_generation_prompt %}[assistant]{% endif %}";
    let (_marked_directory, marked) = model(Some(marked));
    let dataset = load("rows.jsonl", chat("", r#","weight":0"#)).unwrap();
    assert_eq!(
        masked(&dataset, &marked, false),
        ["<s>[user]a[assistant]b[user]c[assistant]⟦d⟧"]
    );
    for flag in [
        r#","weight":2"#,
        r#","train":"no""#,
        r#","train":true,"weight":0"#,
    ] {
        let error = load("rows.jsonl", chat("", flag)).unwrap_err();
        assert!(
            crate::common::message(&error).starts_with("rows.jsonl:1: message 2 of column"),
            "{error}"
        );
    }
}

#[test]
fn templates_that_rewrite_earlier_turns_are_refused() {
    // Only the last assistant turn keeps its full text.
    let template = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and not loop.last %}…\
                    {% else %}{{ m.content }}{% endif %}{% endfor %}\
                    {% if add_generation_prompt %}[assistant]{% endif %}";
    let (_directory, tokenizer) = model(Some(template));
    let row = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]}"#;
    let dataset = load("rows.jsonl", row).unwrap();
    let error = dataset.encode(&tokenizer, 100, false).unwrap_err();
    let DataError::Row {
        problem: RowError::Template(TemplateError::Ambiguous { message: 2, .. }),
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(error.hint().unwrap().contains("generation"));
    assert!(
        dataset.encode(&tokenizer, 100, true).is_ok(),
        "no mask is needed"
    );
}

/// The only row's text under this template, targets in brackets.
fn masked_chat(template: &str, row: &serde_json::Value) -> String {
    let (_directory, tokenizer) = model(Some(template));
    let dataset = load("rows.jsonl", row.to_string()).unwrap();
    masked(&dataset, &tokenizer, false).remove(0)
}

fn two_turns() -> serde_json::Value {
    serde_json::json!({"messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]})
}

#[test]
fn white_space_may_differ_once_messages_follow() {
    let template = "{% for m in messages %}\n  {% if m.role == 'user' %}\n    {{ '[Q] ' + m.content }}\n\n  \
                    {% else %}\n    {{ '[A] ' + m.content + eos_token }}\n  {% endif %}\n{% endfor %}\n\
                    {% if add_generation_prompt %}\n  {{ '[A]' }}\n{% endif %}";
    assert_eq!(
        masked_chat(template, &two_turns()),
        "<s>    [Q] a\n\n    [A]⟦ b</s>\n⟧    [Q] c\n\n    [A]⟦ d</s>\n⟧"
    );
}

#[test]
fn a_turn_ends_where_the_last_one_does() {
    let template = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '<|eot|>' }}{% endfor %}\
                    {{ '<assistant>' if add_generation_prompt else eos_token }}";
    assert_eq!(
        masked_chat(template, &two_turns()),
        "<s><user>a<|eot|><assistant>⟦b<|eot|>⟧<user>c<|eot|><assistant>⟦d<|eot|></s>⟧"
    );
}

#[test]
fn earlier_turns_may_be_rewritten_around_the_content() {
    // What a user says last is marked, which changes with every message.
    let marked = "{% for m in messages %}{% if m.role == 'user' %}[{{ '!' if loop.revindex <= 2 }}{{ m.content }}]\
                  {% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";
    assert_eq!(
        masked_chat(marked, &two_turns()),
        "<s>[a] ⟦b</s>⟧[!c]⟦ d</s>⟧"
    );
    // Only the last turn shows its reasoning.
    let reasoning = "{% for m in messages %}[{{ m.role }}]{{ '(' ~ m.reasoning_content ~ ')' if loop.last and m.reasoning_content }}\
                     {{ m.content }}{{ eos_token if m.role == 'assistant' }}{% endfor %}\
                     {{ '[assistant]' if add_generation_prompt }}";
    let mut row = two_turns();
    for message in [1, 3] {
        row["messages"][message]["reasoning"] = "r".into();
    }
    assert_eq!(
        masked_chat(reasoning, &row),
        "<s>[user]a[assistant]⟦b</s>⟧[user]c[assistant]⟦(r)d</s>⟧"
    );
    // A prompt that the answer does not take up.
    let thinking = "{% for m in messages %}[{{ m.role }}]{{ '(' ~ (m.thinking or '') ~ ')' if m.role == 'assistant' }}\
                    {{ m.content }}<|eot|>{% endfor %}{{ '[assistant]()' if add_generation_prompt }}";
    assert_eq!(
        masked_chat(thinking, &row),
        "<s>[user]a<|eot|>[assistant](⟦r)b<|eot|>⟧[user]c<|eot|>[assistant](⟦r)d<|eot|>⟧"
    );
}

#[test]
fn tool_calls_are_found_without_their_content() {
    let template = "{% for m in messages %}[{{ m.role }}{{ '!' if loop.last }}]\
                    {% if m.tool_calls %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}<|eot|>{% endfor %}";
    let row = serde_json::json!({"messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "tool_calls": [1]},
        {"role": "tool", "content": "b"},
        {"role": "assistant", "content": [{"type": "text", "text": "c"}]},
    ]});
    let template = template.replace(
        "{{ m.content }}",
        "{{ m.content if m.content is string else m.content[0].text }}",
    );
    assert_eq!(
        masked_chat(&template, &row),
        "<s>[user]a<|eot|>[assistant]⟦[1]<|eot|>⟧[tool]b<|eot|>[assistant!]⟦c<|eot|>⟧"
    );
}

/// Names of LLaMA-Factory's `sharegpt` format.
#[test]
fn calls_are_trained_on_and_observations_are_not() {
    let says = |from: &str, value: &str| serde_json::json!({"from": from, "value": value});
    let row = serde_json::json!({"conversations": [
        says("human", "a"), says("function_call", "b"), says("observation", "c"), says("gpt", "d"),
    ]});
    let template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    assert_eq!(
        masked_chat(template, &row),
        "<s>[user]a⟦[assistant]b⟧[tool]c⟦[assistant]d⟧"
    );
}

#[test]
fn what_stays_ambiguous_is_refused_and_said() {
    // Every template tells whether a message is the last, so that no prefix fits.
    for (content, reason) in [
        ("{{ m.content }}/{{ m.content }}", "more than once"),
        ("{{ m.content | length }}", "omits its content"),
        (
            "{{ m.content }}",
            "the text after it depends on its content",
        ),
        (
            "{{ [] | first.x if m.content == '\u{FDD2}' }}{{ m.content }}",
            "fails if its content is different",
        ),
    ] {
        let end = if reason.contains("after it depends") {
            "{{ (messages | rejectattr('role', 'eq', 'system') | list)[1].content == 'b' }}"
        } else {
            ""
        };
        let template =
            format!("{{% for m in messages %}}<{{{{ loop.last }}}}>{content}{{% endfor %}}{end}");
        let (_directory, tokenizer) = model(Some(&template));
        // The row's own messages are counted, without what `system` puts before them.
        let mut with_system = two_turns();
        with_system["system"] = "s".into();
        for row in [two_turns(), with_system] {
            let dataset = load("rows.jsonl", row.to_string()).unwrap();
            let error = dataset.encode(&tokenizer, 100, false).unwrap_err();
            let text = crate::common::message(&error);
            assert!(
                text.starts_with("rows.jsonl:1: template: cannot locate the text of message 2:")
                    && text.contains(reason),
                "{text}"
            );
            assert!(error.hint().unwrap().contains("{% generation %}"));
        }
    }
}

#[test]
fn generation_marks_in_the_text_are_refused() {
    let template =
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    let (_directory, tokenizer) = model(Some(template));
    let row = |text: &str| {
        serde_json::json!({"messages": [{"role": "assistant", "content": text}]}).to_string()
    };
    let encode = |text| {
        load("rows.jsonl", row(text))
            .unwrap()
            .encode(&tokenizer, 100, false)
    };
    assert!(encode("fine").is_ok());
    for text in ["a\u{FDD1}b\u{FDD0}c", "\u{FDD0}", "\u{FDD1}"] {
        let error = encode(text).unwrap_err();
        assert!(
            matches!(
                error,
                DataError::Row {
                    problem: RowError::Template(TemplateError::Generation),
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn chats_need_a_chat_template_and_rows_an_eos() {
    let row = r#"{"messages":[{"role":"assistant","content":"b"}]}"#;
    let dataset = load("rows.jsonl", row).unwrap();
    let (_directory, tokenizer) = model(None);
    let error = dataset.encode(&tokenizer, 100, false).unwrap_err();
    assert!(matches!(error, DataError::NoChatTemplate { .. }) && error.hint().is_some());
    let directory = crate::common::bare_model();
    let tokenizer = loraloom_data::Tokenizer::load(directory.path()).unwrap();
    let error = load("a.jsonl", r#"{"text":"b"}"#)
        .unwrap()
        .encode(&tokenizer, 9, false)
        .unwrap_err();
    assert!(matches!(error, DataError::NoEos { .. }) && error.hint().is_some());
}

/// The style of Llama 3: BOS, headers and end-of-turn tokens come from the template.
#[test]
fn every_assistant_turn_is_trained_on_with_its_end_of_turn() {
    let template = "{{ bos_token }}{% for m in messages %}{{ '[' + m.role + ']\n\n' + m.content | trim + '<|eot|>' }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]\n\n' }}{% endif %}";
    let (_directory, tokenizer) = model(Some(template));
    let row = r#"{"messages":[{"role":"system","content":" s "},{"role":"user","content":"a"},{"role":"assistant","content":" é 😀\n"},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]}"#;
    let dataset = load("rows.jsonl", row).unwrap();
    assert_eq!(
        masked(&dataset, &tokenizer, false),
        [
            "<s>[system]\n\ns<|eot|>[user]\n\na<|eot|>[assistant]\n\n⟦é 😀<|eot|>⟧\
             [user]\n\nc<|eot|>[assistant]\n\n⟦d<|eot|>⟧"
        ]
    );
    // EOS is another token here; the report lets the caller warn that it is never trained.
    let report = dataset.encode(&tokenizer, 100, false).unwrap().train.report;
    assert_eq!((report.kept, report.with_eos_target), (1, 0));
}

#[test]
fn turns_that_are_cut_away_cost_nothing() {
    let (_directory, tokenizer) = model(Some(CHATML));
    let chat = |turns: usize| {
        let turn = r#"{"role":"user","content":"a"},{"role":"assistant","content":"b"},"#;
        let turns = turn.repeat(turns);
        let row = format!("{{\"messages\":[{}]}}", turns.trim_end_matches(','));
        load("rows.jsonl", row).unwrap()
    };
    let started = std::time::Instant::now();
    let short = chat(5000)
        .encode(&tokenizer, 100, false)
        .unwrap()
        .train
        .samples
        .get(0)
        .unwrap();
    // 10000 renderings of up to 10000 messages would take hours unoptimised.
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    let whole = chat(20)
        .encode(&tokenizer, 10_000, false)
        .unwrap()
        .train
        .samples
        .get(0)
        .unwrap();
    assert!(whole.len() > 200);
    assert_eq!(short.ids, whole.ids[..100]);
    assert_eq!(short.is_target, whole.is_target[..100]);
}
