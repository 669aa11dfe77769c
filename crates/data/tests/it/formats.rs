//! Rows of every format to samples: text, mask, truncation, BOS and EOS.

use crate::common::{BOS, CHATML, EOS, complaint, load, load_with, masked, model, pair, samples};
use loraloom_config::{ColumnMap, Validation};
use loraloom_data::{DataError, Dataset, Shown, Split};

#[test]
fn each_format_is_detected_and_rendered() {
    let (_directory, tokenizer) = model(Some(CHATML));
    for (row, format, text) in [
        (
            r#"{"prompt":"2+2=","completion":"4"}"#,
            "prompt/completion (prompt, completion)",
            "<s>2+2=⟦4</s>⟧",
        ),
        (
            r#"{"instruction":"Add","input":"2 2","output":"4"}"#,
            "instruction (instruction, input, output)",
            "<s>Add\n\n2 2\n⟦4</s>⟧",
        ),
        (
            r#"{"instruction":"Add","input":"","output":"4"}"#,
            "instruction (instruction, input, output)",
            "<s>Add\n⟦4</s>⟧",
        ),
        (
            r#"{"instruction":"Add","input":null,"output":"4"}"#,
            "instruction (instruction, input, output)",
            "<s>Add\n⟦4</s>⟧",
        ),
        (r#"{"text":"hello"}"#, "text (text)", "<s>⟦hello</s>⟧"),
        (
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#,
            "messages (messages)",
            "<s><|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>\n⟧",
        ),
        (
            r#"{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}"#,
            "conversations (conversations)",
            "<s><|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>\n⟧",
        ),
    ] {
        let dataset = load("rows.jsonl", row).unwrap();
        assert_eq!(dataset.format().to_string(), format);
        assert_eq!(masked(&dataset, &tokenizer, false), [text], "{row}");
        let whole = text.replace(['⟦', '⟧'], "").replacen("<s>", "<s>⟦", 1) + "⟧";
        assert_eq!(masked(&dataset, &tokenizer, true), [whole], "{row}");
    }
}

#[test]
fn question_and_answer_need_columns() {
    let row = r#"{"question":"q ","answer":"a"}"#;
    let error = load("rows.jsonl", row).unwrap_err();
    assert_eq!(
        crate::common::message(&error),
        "cannot detect the format of rows.jsonl: its columns are `question`, `answer`"
    );
    assert!(
        error
            .hint()
            .unwrap()
            .contains("columns: {prompt: question, completion: answer}")
    );
    let dataset = load_with("rows.jsonl", row, |config| {
        config.columns = Some(pair("question", "answer"));
    })
    .unwrap();
    assert_eq!(
        dataset.format().to_string(),
        "prompt/completion (question, answer)"
    );
    let (_directory, tokenizer) = model(None);
    assert_eq!(masked(&dataset, &tokenizer, false), ["<s>q ⟦a</s>⟧"]);
}

#[test]
fn the_row_that_breaks_the_format_is_named() {
    let good = r#"{"prompt":"a","completion":"b"}"#;
    let json = |bad: &str| complaint(&load("rows.jsonl", format!("{good}\n{bad}\n")).unwrap_err());
    let mut all = String::new();
    for bad in ["null", "1", "true", "0.5", "[\"b\"]", "{}"] {
        all += &json(&format!(r#"{{"prompt":"c","completion":{bad}}}"#));
    }
    all += &json(r#"{"prompt":"c"}"#);
    all += &json(r#"{"prompt":"c","Completion":"d"}"#);
    for (name, text) in [
        // The first row is the one that is wrong.
        ("rows.jsonl", r#"{"text":3}"#),
        (
            "rows.jsonl",
            "{\"prompt\":\"a\"}\n{\"prompt\":\"a\",\"completion\":\"b\"}",
        ),
        (
            "rows.json",
            r#"[{"instruction":"a","output":"b"},{"instruction":"a","output":1}]"#,
        ),
        ("rows.csv", "messages\n\"[{\"\"role\"\": \"\"user\"\"}]\"\n"),
        ("rows.jsonl", r#"{"messages":"hello"}"#),
        ("rows.csv", "prompt, completion\na, b\n"),
        ("rows.csv", "Prompt,COMPLETION,id\na,b,1\n"),
        ("rows.jsonl", r#"{"Text ":"a"}"#),
    ] {
        all += &complaint(&load(name, text).unwrap_err());
    }
    insta::assert_snapshot!(all);
}

/// Rows that have the columns of several formats, but not all of them filled.
#[test]
fn a_format_that_rows_fit_comes_before_one_that_they_do_not() {
    for (rows, format) in [
        (
            r#"{"messages":null,"prompt":"a","completion":"b"}"#,
            "prompt/completion",
        ),
        (
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"text\":\"a\"}\n{\"text\":\"b\"}",
            "text",
        ),
    ] {
        let dataset = load("rows.jsonl", rows).unwrap();
        assert!(dataset.format().to_string().starts_with(format), "{rows}");
    }
}

#[test]
fn templates_render_the_prompt_or_the_whole_row() {
    let (_directory, tokenizer) = model(None);
    let row = r#"{"q":"1 < 2?","a":"yes","n":3}"#;
    let template = |template: &str, columns: Option<ColumnMap>| {
        load_with("rows.jsonl", row, |config| {
            config.template = Some(template.to_owned());
            config.columns = columns;
        })
        .unwrap()
    };
    let prompt = template("Q{{ n }}: {{ q }}\nA: ", Some(pair("q", "a")));
    assert_eq!(
        prompt.format().to_string(),
        "prompt/completion (a, template)"
    );
    assert_eq!(
        masked(&prompt, &tokenizer, false),
        ["<s>Q3: 1 < 2?\nA: ⟦yes</s>⟧"]
    );
    let whole = template(
        "{{ data_point['q'] }}{% if 'b' in data_point %}!{% endif %} {{ a }}",
        None,
    );
    assert_eq!(whole.format().to_string(), "text (template)");
    assert_eq!(masked(&whole, &tokenizer, false), ["<s>⟦1 < 2? yes</s>⟧"]);
    let mut missing = String::new();
    for template in [
        "{{ z }}",
        "{{ 'a' ~ Q }}",
        "{% for z in zs %}{{ z }}{% endfor %}",
        "{{ data_points }}",
        "{{ data_point.z }}",
        "{{ data_point['z.z'] }}",
        "{{ data_point['q'].z }}",
        "{{ data_point['q']['z'] }}",
        "{{ q.z }}",
    ] {
        let error = load_with("rows.jsonl", row, |config| {
            config.template = Some(template.into());
        });
        missing += &complaint(&error.unwrap_err());
    }
    insta::assert_snapshot!(missing);
    let syntax = load_with("rows.jsonl", row, |config| {
        config.template = Some("{{ z".into());
    });
    assert!(
        syntax
            .unwrap_err()
            .to_string()
            .starts_with("datasets.test.template: syntax: ")
    );
}

#[test]
fn a_template_of_whole_rows_marks_what_is_trained() {
    let (_directory, tokenizer) = model(None);
    let rows = "{\"q\":\"1 < 2?\",\"a\":\"yes\"}\n{\"q\":\"2 < 1?\",\"a\":null}";
    let load = |template: &str, columns: Option<ColumnMap>| {
        load_with("rows.jsonl", rows, |config| {
            config.template = Some(template.to_owned());
            config.columns = columns;
        })
    };
    let template =
        "Q: {{ q }}{% if a %}\nA: {% generation -%} {{ a }}{% endgeneration %}.{% endif %}";
    let dataset = load(template, None).unwrap();
    // The second row has nothing marked, and no end of text of its own.
    assert_eq!(
        masked(&dataset, &tokenizer, false),
        ["<s>Q: 1 < 2?\nA: ⟦yes⟧.⟦</s>⟧"]
    );
    assert_eq!(
        masked(&dataset, &tokenizer, true),
        ["<s>⟦Q: 1 < 2?\nA: yes.</s>⟧", "<s>⟦Q: 2 < 1?</s>⟧"]
    );
    let error = load(template, Some(pair("q", "a"))).unwrap_err();
    assert_eq!(
        complaint(&error),
        "datasets.test.template: {% generation %} marks a part of the prompt, but only the completion is \
         trained on\n  hint: leave `columns` out, and the template renders the whole row\n"
    );
    let unbalanced = load("{{ q }}{% generation %}", None).unwrap();
    let error = unbalanced.encode(&tokenizer, 64, false).unwrap_err();
    assert!(error.to_string().contains("not balanced"), "{error}");
}

/// Also in lists and beside strings with digits in them.
#[test]
fn integers_keep_their_digits() {
    let (_directory, tokenizer) = model(None);
    for number in [
        "0",
        "-7",
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775809",
        "12345678901234567890123",
        "99999999999999999999999999999999999999",
    ] {
        let row = format!(r#"{{"a\"1 ":[2.5,-3,{number},1e30],"n":{number}}}"#);
        for (name, text) in [
            ("a.jsonl", row.clone()),
            ("a.json", format!("[{row}, {row}]")),
        ] {
            let dataset = load_with(name, text, |config| {
                config.template =
                    Some("{{ data_point['a\"1 '][2] }} {{ n }} {{ n | tojson }}".into());
            });
            let texts = masked(&dataset.unwrap(), &tokenizer, false);
            assert_eq!(texts[0], format!("<s>⟦{number} {number} {number}</s>⟧"));
        }
    }
    let most = "9".repeat(39);
    let error = load(
        "a.jsonl",
        format!("{{\"text\":\"a\",\n\"n\":{most}}}").replace('\n', ""),
    );
    assert_eq!(
        crate::common::message(&error.unwrap_err()),
        "a.jsonl:1:55: an integer of 39 digits; at most 38 are supported: write it as text, in quotes"
    );
}

#[test]
fn a_column_system_comes_first() {
    let (_directory, tokenizer) = model(Some(CHATML));
    let texts = |row: &str| masked(&load("a.jsonl", row).unwrap(), &tokenizer, false).remove(0);
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let answer = "<|im_start|>assistant\n⟦b<|im_end|>\n⟧";
    let chat = r#""conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]"#;
    let own = r#""messages":[{"role":"system","content":"o"},{"role":"assistant","content":"b"}]"#;
    for (row, expected) in [
        (
            format!(r#"{{"system":"s",{chat}}}"#),
            format!("<s>{}{}{answer}", turn("system", "s"), turn("user", "a")),
        ),
        (
            format!(r#"{{"system":" ",{chat}}}"#),
            format!("<s>{}{answer}", turn("user", "a")),
        ),
        (
            format!(r#"{{"system":null,{chat}}}"#),
            format!("<s>{}{answer}", turn("user", "a")),
        ),
        (
            format!(r#"{{"system":"s",{own}}}"#),
            format!("<s>{}{answer}", turn("system", "o")),
        ),
        (
            r#"{"system":"s","instruction":"a","input":"i","output":"b"}"#.to_owned(),
            "<s>s\n\na\n\ni\n⟦b</s>⟧".to_owned(),
        ),
        (
            r#"{"system":"","instruction":"a","output":"b"}"#.to_owned(),
            "<s>a\n⟦b</s>⟧".to_owned(),
        ),
    ] {
        assert_eq!(texts(&row), expected, "{row}");
    }
    let error = load("a.jsonl", format!(r#"{{"system":3,{chat}}}"#)).unwrap_err();
    assert_eq!(
        crate::common::message(&error),
        "a.jsonl:1: column `system` is the number 3, expected a string"
    );
    let named = load_with("a.jsonl", r#"{"system":"s","output":"b"}"#, |config| {
        config.columns = Some(ColumnMap::Instruction {
            instruction: "system".into(),
            input: None,
            output: "output".into(),
        });
    });
    assert_eq!(
        masked(&named.unwrap(), &tokenizer, false),
        ["<s>s\n⟦b</s>⟧"]
    );
}

#[test]
fn bos_is_there_once_and_eos_ends_the_row() {
    let (_directory, tokenizer) = model(None);
    let dataset = load("rows.jsonl", r#"{"prompt":"<s><s>a","completion":"b</s>"}"#).unwrap();
    let encoded = dataset.encode(&tokenizer, 10, false).unwrap();
    let sample = encoded.train.samples.get(0).unwrap();
    assert_eq!(sample.ids.iter().filter(|id| **id == BOS).count(), 1);
    assert_eq!(sample.ids.iter().filter(|id| **id == EOS).count(), 1);
    assert_eq!((sample.ids[0], sample.ids.len()), (BOS, 4));
    assert_eq!(sample.is_target, [false, false, true, true]);
    assert_eq!(tokenizer.encode_prompt("<s>a").unwrap(), sample.ids[..2]);
    assert_eq!(tokenizer.encode_prompt("a").unwrap(), sample.ids[..2]);
}

#[test]
fn without_bos_the_first_token_is_no_target() {
    let directory = crate::common::bare_model();
    crate::common::write(
        directory.path(),
        "tokenizer_config.json",
        r#"{"bos_token":null,"eos_token":"</s>"}"#,
    );
    let tokenizer = loraloom_data::Tokenizer::load(directory.path()).unwrap();
    let dataset = load("rows.jsonl", r#"{"text":"ab"}"#).unwrap();
    assert_eq!(masked(&dataset, &tokenizer, false), ["a⟦b</s>⟧"]);
}

#[test]
fn long_rows_are_cut_and_rows_without_target_dropped_and_counted() {
    let (_directory, tokenizer) = model(None);
    let rows = "{\"prompt\":\"abcdef\",\"completion\":\"x\"}\n\
                {\"prompt\":\"a\",\"completion\":\"xyz\"}\n\
                {\"prompt\":\"a\",\"completion\":\"\"}\n";
    let dataset = load("rows.jsonl", rows).unwrap();
    let train = dataset.encode(&tokenizer, 4, false).unwrap().train;
    assert_eq!(train.samples.len(), 2);
    let first = train.samples.get(0).unwrap();
    assert_eq!(first.ids.len(), 4);
    assert_eq!(first.is_target, [false, false, true, true]);
    let report = serde_json::to_value(&train.report).unwrap();
    assert_eq!(
        report,
        serde_json::json!({
            "rows": 3, "kept": 2, "dropped_without_target": 1, "truncated": 2, "tokens_cut": 7,
            "with_eos_target": 1, "tokens": 7, "target_tokens": 3, "longest": 9,
            "format": "prompt/completion (prompt, completion)",
        })
    );
    let previews = dataset
        .preview(Split::Training, Shown::First(2), &tokenizer, 4, false)
        .unwrap();
    assert_eq!(previews[0].text(), "<s>abc");
    assert!(previews[0].dropped && previews[0].truncated);
    assert_eq!(previews[1].text(), "<s>a⟦xy⟧");

    let error = dataset.encode(&tokenizer, 1, false).unwrap_err();
    assert!(matches!(
        error,
        DataError::NoTargets {
            rows: 3,
            max_seq_len: 1,
            longest: 9,
            ..
        }
    ));
    assert!(error.to_string().contains("max_seq_len = 1"), "{error}");
    assert!(error.hint().unwrap().contains("max_seq_len"));
    assert!(dataset.encode(&tokenizer, 0, false).is_err());
}

#[test]
fn several_files_are_one_table() {
    let (_directory, tokenizer) = model(None);
    let directory = tempfile::tempdir().unwrap();
    let mut config = crate::common::config(crate::common::write(
        directory.path(),
        "a.csv",
        "prompt,completion\n1,\"x,\ny\"\n",
    ));
    config.path.push(crate::common::write(
        directory.path(),
        "b.json",
        r#"[{"completion":"b","prompt":"2"},{"prompt":"3","completion":"c"}]"#,
    ));
    let dataset = Dataset::load("both", &config, 0).unwrap();
    assert_eq!(
        masked(&dataset, &tokenizer, false),
        ["<s>1⟦x,\ny</s>⟧", "<s>2⟦b</s>⟧", "<s>3⟦c</s>⟧"]
    );
    config.path.push(crate::common::write(
        directory.path(),
        "c.jsonl",
        r#"{"text":"t"}"#,
    ));
    let error = Dataset::load("both", &config, 0).unwrap_err();
    assert!(matches!(error, DataError::MixedFormats { .. }), "{error}");
}

#[test]
fn validation_rows_are_held_out_or_read_from_a_file() {
    let (_directory, tokenizer) = model(None);
    let rows = (0..50)
        .map(|row| format!("{{\"text\":\"row {row}\"}}\n"))
        .collect::<Vec<_>>()
        .concat();
    let split = |name, seed| {
        let directory = tempfile::tempdir().unwrap();
        let mut config =
            crate::common::config(crate::common::write(directory.path(), "a.jsonl", &rows));
        config.validation = Validation::Fraction(0.2);
        let dataset = Dataset::load(name, &config, seed).unwrap();
        let encoded = dataset.encode(&tokenizer, 100, false).unwrap();
        [encoded.train, encoded.validation.unwrap()].map(|part| samples(&part))
    };
    let [train, validation] = split("a", 1);
    assert_eq!((train.len(), validation.len()), (40, 10));
    assert!(validation.iter().all(|sample| !train.contains(sample)));
    assert_eq!([train.clone(), validation], split("a", 1));
    assert_ne!(train, split("a", 2)[0]);

    let directory = tempfile::tempdir().unwrap();
    let mut config =
        crate::common::config(crate::common::write(directory.path(), "a.jsonl", &rows));
    let held_out = crate::common::write(directory.path(), "b.json", r#"[{"text":"v"}]"#);
    config.validation = Validation::File(held_out.clone());
    let dataset = Dataset::load("a", &config, 0).unwrap();
    assert_eq!(
        (dataset.num_train_rows(), dataset.num_validation_rows()),
        (50, 1)
    );
    crate::common::write(directory.path(), "b.json", r#"[{"words":"v"}]"#);
    let error = Dataset::load("a", &config, 0).unwrap_err();
    assert_eq!(
        crate::common::message(&error),
        "b.json: row 1: no column `text`; the row has `words`"
    );
}
