//! Agreement with transformers, on results kept beside the script that made them.

use std::path::Path;

use loraloom_data::{Shown, Split, Tokenizer};
use serde_json::Value;

use crate::common::Loaded;

fn fixtures() -> (std::path::PathBuf, Value) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/transformers");
    let text = std::fs::read_to_string(directory.join("cases.json")).unwrap();
    (directory, serde_json::from_str(&text).unwrap())
}

/// A tokenizer with this chat template; the rest is the fixtures'.
fn tokenizer(fixtures: &Path, template: &Value) -> Tokenizer {
    let directory = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixtures.join(name), directory.path().join(name)).unwrap();
    }
    crate::common::write(
        directory.path(),
        "chat_template.jinja",
        template.as_str().unwrap(),
    );
    Tokenizer::load(directory.path()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

/// A case as a dataset of one row. The columns keep their order, which `tojson` shows.
fn dataset(case: &str) -> Loaded {
    crate::common::load_with("chat.jsonl", case, |config| {
        config.columns = Some(loraloom_config::ColumnMap::Messages {
            messages: "messages".into(),
        });
    })
    .unwrap()
}

#[test]
fn chats_encode_and_mask_as_in_transformers() {
    let (directory, cases) = fixtures();
    let mut masks = 0;
    for case in cases["chats"].as_array().unwrap() {
        let name = &case["name"];
        let tokenizer = tokenizer(&directory, &case["template"]);
        let Some(mask) = case.get("mask") else {
            continue;
        };
        let row = serde_json::json!({ "messages": case["messages"] }).to_string();
        let sample = |train_on_prompt| {
            let previews = dataset(&row).preview(
                Split::Training,
                Shown::First(1),
                &tokenizer,
                1000,
                train_on_prompt,
            );
            previews.unwrap().remove(0).sample
        };
        // transformers leaves BOS to the template; ours is there once in any case.
        let bos = tokenizer.bos().unwrap();
        let expected = ids(&case["ids"]);
        let written = expected.iter().take_while(|id| **id == bos).count();
        let text = sample(true);
        assert_eq!(text.ids[0], bos);
        assert_eq!(text.ids[1..], expected[written..], "{name}");

        let mask: Vec<bool> = ids(mask).iter().map(|mask| *mask == 1).collect();
        if mask.contains(&true) {
            masks += 1;
            let sample = sample(false);
            assert_eq!(sample.ids, text.ids, "{name}");
            assert_eq!(sample.is_target[1..], mask[written..], "{name}");
        }
    }
    assert!(masks >= 8, "{masks} masks were compared");
}

#[test]
fn generation_prompts_render_as_in_transformers() {
    let (directory, cases) = fixtures();
    for case in cases["chats"].as_array().unwrap() {
        if case.get("tools").is_some() {
            continue;
        }
        let tokenizer = tokenizer(&directory, &case["template"]);
        let messages: Vec<_> = case["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| {
                let field = |name: &str| message[name].as_str().unwrap();
                loraloom_data::Message::new(field("role"), field("content"))
            })
            .collect();
        let text = tokenizer
            .chat_template()
            .unwrap()
            .render(&messages, case["add_generation_prompt"].as_bool().unwrap())
            .unwrap();
        assert_eq!(text, case["text"].as_str().unwrap(), "{}", case["name"]);
    }
}

#[test]
fn expressions_print_as_in_transformers() {
    let (directory, cases) = fixtures();
    let messages = [
        ("user", "What is the capital of France?"),
        ("assistant", "The capital of France is Paris."),
    ]
    .map(|(role, content)| loraloom_data::Message::new(role, content));
    let mut wrong = Vec::new();
    for case in cases["expressions"].as_array().unwrap() {
        let expression = case[0].as_str().unwrap();
        let template = serde_json::json!(format!("{{{{ {expression} }}}}"));
        let rendered = tokenizer(&directory, &template)
            .chat_template()
            .unwrap()
            .render(&messages, false);
        if !matches!(&rendered, Ok(text) if *text == case[1].as_str().unwrap()) {
            wrong.push(format!("{expression} is {}: {rendered:?}", case[1]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tool_calls_render_as_in_transformers() {
    let (directory, cases) = fixtures();
    let all = cases["chats"].as_array().unwrap();
    let case = all.iter().find(|case| case.get("tools").is_some()).unwrap();
    let tokenizer = tokenizer(&directory, &case["template"]);
    // The row is cut out of the file: serde_json would sort its keys.
    let file = std::fs::read_to_string(directory.join("tools.json")).unwrap();
    let previews = dataset(&file.replace('\n', ""))
        .preview(Split::Training, Shown::First(1), &tokenizer, 10_000, true)
        .unwrap();
    let text = tokenizer
        .decode(&previews[0].sample.ids[1..], false)
        .unwrap();
    assert_eq!(text, case["text"].as_str().unwrap());
}

#[test]
fn pairs_encode_as_in_the_peft_reference() {
    let (directory, cases) = fixtures();
    let tokenizer = Tokenizer::load(&directory).unwrap();
    for case in cases["pairs"].as_array().unwrap() {
        let row = serde_json::json!({
            "prompt": case["prompt"], "completion": case["completion"]
        });
        // Without a completion in any row there would be no dataset.
        let rows = format!("{row}\n{{\"prompt\":\"\",\"completion\":\"a\"}}");
        let dataset = crate::common::load("pairs.jsonl", rows).unwrap();
        let max_seq_len = case["max_seq_len"].as_u64().unwrap() as usize;
        let preview = &dataset
            .preview(
                Split::Training,
                Shown::First(1),
                &tokenizer,
                max_seq_len,
                false,
            )
            .unwrap()[0];
        let labels = case["labels"].as_array().unwrap();
        let expected: Vec<bool> = labels
            .iter()
            .map(|label| label.as_i64() != Some(-100))
            .collect();
        assert_eq!(preview.sample.ids, ids(&case["ids"]), "{case}");
        assert_eq!(preview.sample.is_target, expected, "{case}");
        assert_eq!(preview.dropped, !expected[1..].contains(&true), "{case}");
    }
}
