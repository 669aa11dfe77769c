//! Only the beginning of a long row is tokenised, and it has the tokens and the mask that the whole has.

use std::{fs, path::Path};

use loraloom_data::{Dataset, Sample, Shown, Split, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::{CHATML, load, write};

/// A bundled tokenizer with another normalizer, pre-tokenizer and model.
fn tokenizer(change: impl FnOnce(&mut Value)) -> Tokenizer {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-llama");
    let text = fs::read_to_string(bundled.join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    change(&mut tokenizer);
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "tokenizer.json", tokenizer.to_string());
    let config = fs::read(bundled.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["chat_template"] = CHATML.into();
    write(
        directory.path(),
        "tokenizer_config.json",
        config.to_string(),
    );
    Tokenizer::load(directory.path()).unwrap()
}

/// Tokenizers that look at text in different ways before they merge, and one that merges nothing.
fn tokenizers() -> Vec<(&'static str, Tokenizer)> {
    let bytes = |use_regex: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex
        })
    };
    let split = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    vec![
        ("as it is", tokenizer(|_| {})),
        (
            "the text is one word",
            tokenizer(|tokenizer| tokenizer["pre_tokenizer"] = bytes(false)),
        ),
        (
            "Llama 3's words",
            tokenizer(|tokenizer| {
                tokenizer["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": false},
                    bytes(false),
                ]});
            }),
        ),
        (
            "composed and stripped",
            tokenizer(|tokenizer| {
                tokenizer["normalizer"] = json!({"type": "Sequence", "normalizers": [
                    {"type": "NFKC"}, {"type": "Strip", "strip_left": true, "strip_right": true},
                ]});
            }),
        ),
        (
            "pieces of greatest probability, of Metaspace's words",
            tokenizer(|tokenizer| {
                tokenizer["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
                let mut vocabulary = vec![json!(["<unk>", 0.0])];
                let bundled = tokenizer["model"]["vocab"].as_object().unwrap();
                let pieces = bundled.keys().enumerate();
                vocabulary.extend(pieces.map(|(rank, piece)| {
                    json!([piece.replace('Ġ', "▁"), -8.0 - (rank % 97) as f64 / 16.0])
                }));
                vocabulary.sort_by_key(|entry| entry[0].to_string());
                vocabulary.dedup_by_key(|entry| entry[0].to_string());
                let unknown = vocabulary.iter().position(|entry| entry[0] == "<unk>");
                tokenizer["model"] = json!({
                    "type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": false
                });
                let added = tokenizer["added_tokens"].as_array_mut().unwrap();
                for (id, token) in (vocabulary.len()..).zip(added) {
                    token["id"] = id.into();
                }
            }),
        ),
    ]
}

fn samples(dataset: &Dataset, tokenizer: &Tokenizer, max_seq_len: usize) -> Vec<Sample> {
    let previews = dataset
        .preview(
            Split::Training,
            Shown::First(9),
            tokenizer,
            max_seq_len,
            false,
        )
        .unwrap();
    previews.into_iter().map(|row| row.sample).collect()
}

/// Words, runs of one character, numbers, white space, marks that combine, special tokens.
fn words() -> impl Strategy<Value = Vec<String>> {
    let word = prop_oneof![
        6 => "[a-z]{1,9}",
        2 => "[A-Z][a-z]{1,5}[.,!']{0,2}",
        2 => "[0-9]{1,12}",
        2 => "[ \\n\\t]{1,5}",
        1 => "[éüßñ漢字かな😀]{1,4}",
        1 => "e\u{301}{1,2}",
        1 => Just("</s>".to_owned()),
        1 => Just("<|im_end|>".to_owned()),
        1 => ("[a \\n0é=]", 1..400_usize).prop_map(|(character, times)| character.repeat(times)),
    ];
    prop::collection::vec(word, 1..60).prop_filter("a row of white space alone is empty", |words| {
        words.iter().any(|word| !word.trim().is_empty())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn the_beginning_of_a_row_is_that_of_the_whole(
        words in words(),
        separator in prop_oneof![3 => Just(" "), 1 => Just("")],
        max_seq_len in 8_usize..300,
        seed: u64,
    ) {
        let (mut text, mut state) = (String::new(), seed);
        while text.len() < 90_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text += &words[(state >> 33) as usize % words.len()];
            text += separator;
        }
        let rows = [
            load("a.jsonl", json!({"text": text}).to_string()).unwrap(),
            load("a.jsonl", json!({"prompt": "What?", "completion": text}).to_string()).unwrap(),
            load("a.jsonl", json!({"prompt": text, "completion": "That."}).to_string()).unwrap(),
            load("a.jsonl", json!({"messages": [
                {"role": "user", "content": "What?"},
                {"role": "assistant", "content": text},
                {"role": "user", "content": text},
            ]}).to_string()).unwrap(),
        ];
        for (name, tokenizer) in tokenizers() {
            for dataset in &rows {
                // Of so many tokens the whole is tokenised.
                let mut whole = samples(dataset, &tokenizer, 1_000_000);
                for sample in &mut whole {
                    prop_assert!(sample.len() > max_seq_len, "{} {}", name, sample.len());
                    sample.ids.truncate(max_seq_len);
                    sample.is_target.truncate(max_seq_len);
                }
                prop_assert_eq!(samples(dataset, &tokenizer, max_seq_len), whole, "{}", name);
            }
        }
    }
}
