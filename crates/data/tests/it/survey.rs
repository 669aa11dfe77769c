//! What a survey counts, and that it counts as training does.

use std::fmt::Write;

use loraloom_config::Validation;
use loraloom_data::{DataError, Dataset, Shown, Split, Survey};

use crate::common::{CHATML, config, model, samples, write};

fn pair(prompt: &str, completion: &str) -> String {
    serde_json::json!({"prompt": prompt, "completion": completion}).to_string() + "\n"
}

#[test]
fn rows_are_counted_as_in_training_and_copies_of_them() {
    let (_model, tokenizer) = model(None);
    let directory = tempfile::tempdir().unwrap();
    let long = "x".repeat(40);
    let train = [
        pair("a", "b"),
        pair("a", "b"),
        // Copies by their text: this column is not trained on.
        pair("a", "b").replace('{', "{\"id\":7,"),
        pair("a", "c"),
        pair("a", &long),
        // The same once they are cut, not before.
        pair(&long, "d"),
        pair(&long, "e"),
        pair("a", "<s>b"),
        pair("<s>", "f"),
    ];
    let path = write(directory.path(), "train.jsonl", train.concat());
    let validation = [pair("a", "c"), pair("a", "c"), pair("new", "b")];
    let mut config = config(path);
    config.validation = Validation::File(write(
        directory.path(),
        "validation.jsonl",
        validation.concat(),
    ));
    let dataset = Dataset::load("test", &config, 0).unwrap();

    let Survey {
        train,
        validation,
        shared,
    } = dataset.survey(&tokenizer, 16, false).unwrap();
    let validation = validation.unwrap();
    let encoded = dataset.encode(&tokenizer, 16, false).unwrap();
    assert_eq!(train.report, encoded.train.report);
    assert_eq!(validation.report, encoded.validation.unwrap().report);
    let (shared_rows, warnings) = encoded.warnings.split_last().unwrap();
    assert_eq!([&*train.warnings, &*validation.warnings].concat(), warnings);
    assert!(
        shared_rows.message.contains("2 of 3 validation rows"),
        "{shared_rows}"
    );
    assert!(train.refusal.is_none());

    assert_eq!((train.duplicates, validation.duplicates, shared), (2, 1, 2));
    assert_eq!((train.report.dropped_without_target, train.masked), (2, 0));
    assert_eq!(train.extra_bos, 1);
    assert_eq!(train.lengths, [4, 4, 4, 4, 43, 43, 43, 5, 3]);
    assert_eq!(validation.lengths, [4, 4, 6]);
}

#[test]
fn what_nothing_can_be_trained_on_is_surveyed_with_the_reason() {
    let (_model, tokenizer) = model(Some(CHATML));
    let chat = |role: &str, content: &str, trained: &str| {
        let answer = format!(r#"{{"role":"assistant","content":"b"{trained}}}"#);
        format!(r#"{{"messages":[{{"role":"{role}","content":"{content}"}},{answer}]}}"#) + "\n"
    };
    let untrained = chat("user", "a", r#","train":false"#);
    let cut = chat("user", &"x".repeat(60), "");
    let rows = format!("{untrained}{cut}");
    let dataset = crate::common::load("chat.jsonl", rows).unwrap();
    let survey = dataset.survey(&tokenizer, 48, false).unwrap().train;
    assert_eq!((survey.report.kept, survey.masked), (0, 1));
    let refusal = survey.refusal.unwrap().to_string();
    let error = dataset.encode(&tokenizer, 48, false).unwrap_err();
    assert_eq!(refusal, error.to_string());

    let rows = dataset.preview(Split::Training, Shown::First(9), &tokenizer, 48, false);
    let mut said = String::new();
    for row in rows.unwrap() {
        let reason = row
            .reason
            .map_or_else(|| "cut off".to_owned(), |reason| reason.to_string());
        writeln!(said, "{} {} {reason}", row.location.number(), row.dropped).unwrap();
    }
    assert_eq!(
        said,
        "1 true `train` or `weight` excludes every message from training\n2 true cut off\n"
    );
    let second = dataset.preview(Split::Training, Shown::Numbered(2), &tokenizer, 9, false);
    assert_eq!(second.unwrap()[0].location.number(), 2);
    let validation = dataset.preview(Split::Validation, Shown::First(9), &tokenizer, 9, false);
    assert_eq!(validation.unwrap(), []);
}

/// The hint is to raise `max_seq_len` where that helps some row.
#[test]
fn rows_of_which_some_are_only_cut_are_refused_for_the_cut() {
    let (_model, tokenizer) = model(Some(CHATML));
    let row = |content: &str, trained: bool| {
        let answer = serde_json::json!({"role": "assistant", "content": "b", "train": trained});
        let user = serde_json::json!({"role": "user", "content": content});
        serde_json::json!({ "messages": [user, answer] }).to_string() + "\n"
    };
    let rows = row("a", false) + &row(&"x".repeat(60), true);
    let dataset = crate::common::load("chat.jsonl", rows).unwrap();
    let error = dataset.encode(&tokenizer, 48, false).unwrap_err();
    assert!(
        matches!(error, DataError::NoTargets { rows: 2, .. }),
        "{error}"
    );
}

#[test]
fn rows_without_an_assistant_are_refused_with_the_roles_of_all() {
    let (_model, tokenizer) = model(Some(CHATML));
    let row = |role: &str| {
        let message = serde_json::json!({"role": role, "content": "a"});
        serde_json::json!({ "messages": [message] }).to_string() + "\n"
    };
    let rows = row("user") + &row("system");
    let dataset = crate::common::load("chat.jsonl", rows).unwrap();
    let error = dataset.encode(&tokenizer, 64, false).unwrap_err();
    assert!(
        error.to_string().ends_with("found: `system`, `user`"),
        "{error}"
    );
}

#[test]
fn a_dropped_row_counts_for_no_sample() {
    let (_model, tokenizer) = model(None);
    let rows = pair("a", "b") + &pair(&format!("a<s>{}", "x".repeat(40)), "b");
    let dataset = crate::common::load("a.jsonl", rows).unwrap();
    let survey = dataset.survey(&tokenizer, 16, false).unwrap().train;
    assert_eq!((survey.report.kept, survey.extra_bos), (1, 0));
}

#[test]
fn a_split_encodes_as_in_training_with_the_places_of_its_samples() {
    let (_model, tokenizer) = model(None);
    let long = "x".repeat(40);
    let rows: Vec<String> = (0..40)
        .map(|row| pair(if row == 3 { &long } else { "a" }, "b"))
        .collect();
    let dataset = crate::common::load_with("a.jsonl", rows.concat(), |config| {
        config.validation = Validation::Fraction(0.25);
    })
    .unwrap();
    let encoded = dataset.encode(&tokenizer, 16, false).unwrap();
    for (split, expected) in [
        (Split::Training, encoded.train),
        (Split::Validation, encoded.validation.unwrap()),
    ] {
        let part = |limit| {
            dataset
                .encode_split(split, limit, &tokenizer, 16, false)
                .unwrap()
        };
        let (all, locations) = part(usize::MAX);
        assert_eq!(all.report, expected.report);
        let all = samples(&all);
        assert_eq!(all, samples(&expected));
        assert_eq!(locations.len(), all.len());
        assert!(locations.iter().all(|location| location.number() != 4));
        let (few, places) = part(5);
        assert_eq!(few.report.rows, 5);
        assert_eq!(places, locations[..few.samples.len()]);
        assert_eq!(samples(&few), all[..few.samples.len()]);
    }
}
