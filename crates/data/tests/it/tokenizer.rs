//! Special tokens and chat templates from the files of a model directory.

use crate::common::{BOS, EOS, bare_model, write};
use loraloom_data::{DataError, Message, Tokenizer};

/// Loads the test tokenizer with these files beside it.
fn load(files: &[(&str, &str)]) -> Result<Tokenizer, DataError> {
    let directory = bare_model();
    for (name, text) in files {
        write(directory.path(), name, text);
    }
    Tokenizer::load(directory.path())
}

#[test]
fn text_round_trips() {
    let (_directory, tokenizer) = crate::common::model(None);
    let ids = tokenizer.encode("naïve 日本 😀</s>").unwrap();
    assert_eq!(ids.last(), Some(&EOS));
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "naïve 日本 😀</s>");
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "naïve 日本 😀");
    assert!(tokenizer.encode("").unwrap().is_empty());
    assert_eq!(tokenizer.vocab_size(), 262);
}

/// What a tokenizer would cut or pad on its own is neither counted nor trained.
#[test]
fn a_tokenizers_own_lengths_do_not_count() {
    let plain = bare_model();
    let path = plain.path().join("tokenizer.json");
    let text = std::fs::read_to_string(path).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0,
    });
    json["padding"] = serde_json::json!({
        "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<unk>",
    });
    let own = load(&[("tokenizer.json", &json.to_string())]).unwrap();
    let plain = Tokenizer::load(plain.path()).unwrap();
    for text in ["short", "a text that is longer than six tokens"] {
        assert_eq!(own.encode(text).unwrap(), plain.encode(text).unwrap());
    }
}

#[test]
fn special_tokens_come_from_the_tokenizers_files() {
    let config = r#"{"bos_token":{"content":"<s>"},"eos_token":"</s>","pad_token":"<unk>"}"#;
    let tokenizer = load(&[("tokenizer_config.json", config)]).unwrap();
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.pad()),
        (Some(BOS), Some(EOS), Some(261))
    );

    let map = (
        "special_tokens_map.json",
        r#"{"bos_token":"<s>","eos_token":"</s>"}"#,
    );
    let tokenizer = load(&[map, ("tokenizer_config.json", "{}")]).unwrap();
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.pad()),
        (Some(BOS), Some(EOS), Some(EOS))
    );

    // A null is a decision, which neither the map nor the model's ids overrule.
    let null = (
        "tokenizer_config.json",
        r#"{"bos_token":null,"eos_token":"</s>"}"#,
    );
    let model = ("config.json", r#"{"bos_token_id":256}"#);
    assert_eq!(load(&[map, null, model]).unwrap().bos(), None);
    let forbidden = r#"{"add_bos_token":false,"bos_token":"<s>","eos_token":"</s>"}"#;
    assert_eq!(
        load(&[("tokenizer_config.json", forbidden)]).unwrap().bos(),
        None
    );
}

#[test]
fn the_models_ids_fill_in_and_add_stop_tokens() {
    let generation = ("generation_config.json", r#"{"eos_token_id":[260,257]}"#);
    let model = ("config.json", r#"{"bos_token_id":256,"eos_token_id":257}"#);
    let tokenizer = load(&[generation, model]).unwrap();
    assert_eq!(tokenizer.bos(), Some(BOS));
    assert_eq!(tokenizer.eos_ids(), [260, 257]);
    let config = (
        "tokenizer_config.json",
        r#"{"bos_token":"<s>","eos_token":"</s>"}"#,
    );
    let tokenizer = load(&[config, generation, model]).unwrap();
    assert_eq!(tokenizer.eos(), Some(EOS));
    assert_eq!(tokenizer.eos_ids(), [257, 260]);
    assert_eq!(load(&[]).unwrap().eos(), None);
}

#[test]
fn bad_model_directories_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    let missing = Tokenizer::load(directory.path()).unwrap_err();
    assert!(
        missing
            .to_string()
            .ends_with("tokenizer.json does not exist"),
        "{missing}"
    );
    assert!(missing.hint().unwrap().contains("save_pretrained"));
    write(directory.path(), "tokenizer.json", "{}");
    assert!(matches!(
        Tokenizer::load(directory.path()),
        Err(DataError::MalformedModelFile { .. })
    ));
    for (config, expected) in [
        ("{", "cannot use"),
        (
            r#"{"eos_token":3}"#,
            "`eos_token` is neither a string nor an object with `content`",
        ),
        (r#"{"eos_token":"<end>"}"#, "eos_token `<end>` of"),
        (
            r#"{"chat_template":[{"name":"a","template":""},{"name":"b","template":""}]}"#,
            "`default`",
        ),
        (
            r#"{"chat_template":"{% if %}"}"#,
            "tokenizer_config.json: syntax: ",
        ),
        (r#"{"chat_template":7}"#, "`chat_template` is neither"),
    ] {
        let error = load(&[("tokenizer_config.json", config)]).unwrap_err();
        assert!(error.to_string().contains(expected), "{config}: {error}");
    }
}

#[test]
fn chat_templates_are_found_where_transformers_puts_them() {
    let render = |files: &[(&str, &str)]| {
        let tokenizer = load(files).unwrap();
        tokenizer.chat_template().map(|template| {
            template
                .render(&[Message::new("user", "hello")], true)
                .unwrap()
        })
    };
    let string = (
        "tokenizer_config.json",
        r#"{"chat_template":"in config: {{ messages[0].content }}"}"#,
    );
    let list = r#"{"chat_template":[{"name":"rag","template":"x"},{"name":"default","template":"named"}]}"#;
    let only = r#"{"chat_template":[{"name":"rag","template":"lone"}]}"#;
    let file = (
        "chat_template.jinja",
        "in a file: {{ messages[0]['content'] }}",
    );
    assert_eq!(render(&[string]).as_deref(), Some("in config: hello"));
    assert_eq!(
        render(&[("tokenizer_config.json", list)]).as_deref(),
        Some("named")
    );
    assert_eq!(
        render(&[("tokenizer_config.json", only)]).as_deref(),
        Some("lone")
    );
    assert_eq!(render(&[string, file]).as_deref(), Some("in a file: hello"));
    assert_eq!(render(&[]), None);
}

#[test]
fn templates_have_transformers_functions_and_a_fixed_date() {
    let render = |template: &str| {
        let (_directory, tokenizer) = crate::common::model(Some(template));
        let chat = tokenizer.chat_template().unwrap();
        chat.render(&[Message::new("user", "hello")], false)
    };
    assert_eq!(
        render("{{ strftime_now('%d %b %Y') }}").unwrap(),
        "26 Jul 2024"
    );
    let error = render("{{ raise_exception('no ' + messages[0].role) }}").unwrap_err();
    assert!(error.to_string().contains("no user"), "{error}");
    assert_eq!(
        render("{{ bos_token }}{{ missing }}{{ missing is defined }}").unwrap(),
        "<s>False"
    );
    assert_eq!(
        render("{{ {'b': 'é<', 'a': 1} | tojson(sort_keys=true, ensure_ascii=true) }}").unwrap(),
        "{\"a\": 1, \"b\": \"\\u00e9<\"}"
    );
    assert_eq!(
        render("{{ [1, {}] | tojson(separators=[',', ':']) }}").unwrap(),
        "[1,{}]"
    );
}

/// Bytes that are no characters by themselves, in GPT-2's letters and in those of byte fallback.
#[test]
fn tokens_that_are_parts_of_characters_have_bytes() {
    let plain = bare_model();
    let text = std::fs::read_to_string(plain.path().join("tokenizer.json")).unwrap();
    let fallback = text.replace("\"\u{c3}\"", "\"<0xC3>\"");
    assert_ne!(text, fallback);
    for text in [text, fallback] {
        let tokenizer = load(&[("tokenizer.json", &text)]).unwrap();
        let ids = 0..tokenizer.vocab_size() as u32;
        let mut parts: Vec<_> = ids
            .filter_map(|id| tokenizer.part_of_character(id))
            .collect();
        parts.sort();
        assert_eq!(
            parts,
            (128..=255).map(|byte| vec![byte]).collect::<Vec<_>>()
        );
    }
}
