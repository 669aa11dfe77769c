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
    for flag in [r#","train":false"#, r#","weight":0"#] {
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
        problem: RowError::Template(TemplateError::NotAPrefix { message: 2 }),
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
        .remove(0);
    // 10000 renderings of up to 10000 messages would take hours unoptimised.
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    let whole = chat(20)
        .encode(&tokenizer, 10_000, false)
        .unwrap()
        .train
        .samples
        .remove(0);
    assert!(whole.len() > 200);
    assert_eq!(short.ids, whole.ids[..100]);
    assert_eq!(short.is_target, whole.is_target[..100]);
}
