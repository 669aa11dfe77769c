//! Files that are well formed, badly formed, or not data at all.

use std::{
    fs::File,
    time::{Duration, Instant, SystemTime},
};

use crate::common::{complaint, config, load, load_with, masked, message, pair, write};
use loraloom_config::Validation;
use loraloom_data::{DataError, Dataset, Shown, Split};
use proptest::prelude::*;

fn error(name: &str, text: impl AsRef<[u8]>) -> String {
    message(&load(name, text).unwrap_err())
}

#[test]
fn json_is_read_in_all_its_shapes() {
    let row = r#"{"text":"a"}"#;
    for (name, text, rows) in [
        (
            "a.jsonl",
            format!("\u{feff}{row}\n\n  \r\n{row}\r\n{row}"),
            3,
        ),
        ("a.ndjson", row.to_owned(), 1),
        ("a.jsonl", format!(" [{row},{row}]"), 2),
        ("a.json", format!("\u{feff}[\n{row},\n{row}\n]\n"), 2),
        ("a.json", format!("{row}\n{row}\n"), 2),
        ("a.json", row.to_owned(), 1),
        ("a.json", "{\n\"text\":\n\"a\"}".to_owned(), 1),
        (
            "a.json",
            format!("{{\"version\":1,\"data\":[{row},{row}]}}"),
            2,
        ),
        ("a.json", format!("{{\n\"data\":[{row},{row}]\n}}"), 2),
        ("a.JSON", format!("[{row}]"), 1),
        ("a.csv", "\u{feff}id,text\n1,a\n2,\"b\nc\"\n".to_owned(), 2),
        ("a.tsv", "id\ttext\n1\ta,b\n".to_owned(), 1),
    ] {
        let dataset = load(name, &text).unwrap_or_else(|error| panic!("{name} {text:?}: {error}"));
        assert_eq!(dataset.num_train_rows(), rows, "{name} {text:?}");
        assert_eq!(
            dataset.format().to_string(),
            "text (text)",
            "{name} {text:?}"
        );
    }
    let chat = r#"{"messages":[{"role":"user","content":"a"}]}"#;
    assert_eq!(load("a.json", chat).unwrap().num_train_rows(), 1);
}

#[test]
fn errors_name_file_line_and_column() {
    assert_eq!(
        error("a.jsonl", "{\"text\":\"a\"}\n\n{\"text\": b}\n"),
        "a.jsonl:3:10: expected value"
    );
    assert_eq!(
        error("a.jsonl", "{\"text\":\"a\"\n"),
        "a.jsonl:1:11: EOF while parsing an object"
    );
    assert_eq!(
        error("a.json", "[{\"text\":\"a\"},\n{\"text\" 1}]"),
        "a.json:2:9: expected `:`"
    );
    assert_eq!(
        error("a.jsonl", "{\"text\":\"a\"}\n[1]\n"),
        "a.jsonl:2: expected an object, found a list"
    );
    assert_eq!(
        error("a.json", "[{\"text\":\"a\"}, 3]"),
        "a.json: row 2: expected an object, found the number 3"
    );
    assert_eq!(
        error(
            "a.jsonl",
            "{\"text\":\"a\"}\n".repeat(16) + "{\"words\":1,\"more\":2}"
        ),
        "a.jsonl:17: no column `text`; the row has `words`, `more`"
    );
    assert_eq!(
        error("a.jsonl", "{\"text\":\"a\"}\n".repeat(16) + "{\"text\":17}"),
        "a.jsonl:17: column `text` is the number 17, expected a string"
    );
    assert_eq!(
        error("a.csv", "text,id\na,1\nb\n"),
        "a.csv:3: 1 fields, but the header has 2"
    );
    assert_eq!(
        error("a.csv", "text,text\na,1\n"),
        "a.csv:1: the header names column `text` twice"
    );
    assert_eq!(
        error("a.jsonl", b"{\"text\":\"a\"}\n{\"text\":\"\xff\"}\n"),
        "a.jsonl:2: invalid UTF-8 at byte 10 of the line"
    );
    assert_eq!(
        error("a.json", b"[{\"text\":\"a\"},\n{\"text\":\"\xff\"}]"),
        "a.json:2: invalid UTF-8 at byte 10 of the line"
    );
    assert!(error("a.csv", b"text\na\n\xff\n").starts_with("a.csv:3: invalid UTF-8 at byte 1"));
    // The rows of the last lines are wrong.
    for text in ["text,id\na,1\n,2\n", "text,id\n\na,1\n\n\n,2\n"] {
        for text in [text.replace('\n', "\r\n"), text.to_owned()] {
            let line = text.lines().count();
            let found = load_with("a.csv", &text, |config| {
                config.template = Some("{{ text if text else nothing }}".to_owned());
            });
            let found = message(&found.unwrap_err());
            assert!(
                found.starts_with(&format!("a.csv:{line}: ")),
                "{text:?}: {found}"
            );
        }
    }
    // The last line is wrong.
    for text in [
        "text,id\na,1\nb\n",
        "text,id\n\n\na,1\n\nb\n",
        "\n\u{feff}text,id\na,1\nb",
        "text,id\n\"a\n\n\"\"x\"\"\",1\nb\n",
        "text,id\n\"a\" x,1\n\" \",\"\"\nb\n",
        "text,id\n \n",
    ] {
        for text in [text.replace('\n', "\r\n"), text.to_owned()] {
            let line = text.lines().count();
            let expected = format!("a.csv:{line}: 1 fields, but the header has 2");
            assert_eq!(error("a.csv", &text), expected, "{text:?}");
        }
    }
    assert_eq!(
        error("a.csv", "\r\ntext,text\r\na,1\r\n"),
        "a.csv:2: the header names column `text` twice"
    );
    // The reader parses the second of these rows before it looks at the bytes of the first.
    assert!(error("a.csv", b"text\r\na\r\n\xff\r\n").starts_with("a.csv:3: invalid UTF-8"));
}

#[test]
fn tables_with_other_delimiters_are_told_apart() {
    let mut all = String::new();
    for (name, text) in [
        ("a.csv", "prompt;completion\r\na, b;c\r\n"),
        ("a.csv", "\"prompt\";\"completion\"\n\"a\nb\";\"c\"\n"),
        ("a.csv", "prompt\tcompletion\na\tb\n"),
        ("a.csv", "prompt|completion\na|b\n"),
        ("a.tsv", "prompt,completion\na,b\n"),
    ] {
        all += &complaint(&load(name, text).unwrap_err());
    }
    insta::assert_snapshot!(all);
    let dataset = load("a.csv", "text\na;b\tc|d\n").unwrap();
    assert_eq!(dataset.num_train_rows(), 1);
}

/// A thousand rows, of which the last words of some are others.
fn goats(endings: &[(usize, &str)]) -> String {
    let mut rows = vec!["prompt,completion".to_owned()];
    rows.extend((0..1000).map(|row| format!("goat {row},GOAT {row}!")));
    for (row, ending) in endings {
        rows[*row] = format!("he said hi,{ending}");
    }
    rows.join("\n") + "\n"
}

#[test]
fn quotes_take_no_rows_in_silence() {
    let mut all = String::new();
    for endings in [
        &[(500, "\"GOAT!")][..],
        &[(500, "\"GOAT!"), (700, "\"GOAT, I say!\"")],
        &[(500, "\"GOAT!"), (700, "\"\"GOAT!")],
        &[(1000, "\"")],
    ] {
        all += &complaint(&load("a.csv", goats(endings)).unwrap_err());
    }
    all += &complaint(&load("a.csv", "\u{feff}\"prompt,completion\na,b\n").unwrap_err());
    all += &complaint(&load("a.tsv", "prompt\tcompletion\na\t\"b\nc\td\n").unwrap_err());
    insta::assert_snapshot!(all);
}

/// As Python's `csv` and pandas read them.
#[test]
fn other_quotes_are_text_or_go() {
    let (_directory, tokenizer) = crate::common::model(None);
    for (cell, text) in [
        ("a \"b\" c", "a \"b\" c"),
        ("a\"", "a\""),
        ("\"a\"b", "ab"),
        ("\"a \"\"b\"\"\"", "a \"b\""),
        ("\"a\nb, \"\"c\"\"\nd\"", "a\nb, \"c\"\nd"),
    ] {
        for end in ["\n", "\r\n", ""] {
            let dataset = load("a.csv", format!("prompt,completion\n1,{cell}{end}")).unwrap();
            let expected = format!("<s>1⟦{text}</s>⟧");
            assert_eq!(masked(&dataset, &tokenizer, false), [expected], "{cell}");
        }
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused_unread() {
    let directory = tempfile::tempdir().unwrap();
    let mut all = String::new();
    for name in ["pipe.jsonl", "pipe.json", "pipe.csv", "directory.jsonl"] {
        let path = directory.path().join(name);
        if name.starts_with("pipe") {
            let made = std::process::Command::new("mkfifo").arg(&path).status();
            assert!(made.unwrap().success());
        } else {
            std::fs::create_dir(&path).unwrap();
        }
        let config = config(path);
        all += &complaint(&Dataset::load("a", &config, 0).unwrap_err());
    }
    let all = all.replace(&format!("{}/", directory.path().display()), "");
    insta::assert_snapshot!(all);
}

#[test]
fn a_file_that_changes_between_passes_is_refused() {
    let (_model, tokenizer) = crate::common::model(None);
    let directory = tempfile::tempdir().unwrap();
    let row = "{\"text\":\"a\"}\n";
    let path = write(directory.path(), "a.jsonl", row.repeat(3));
    let dataset = Dataset::load("a", &config(path), 0).unwrap();
    assert!(dataset.is_unchanged() && dataset.encode(&tokenizer, 9, false).is_ok());
    write(directory.path(), "a.jsonl", row.repeat(4));
    let error = dataset.encode(&tokenizer, 9, false).unwrap_err();
    assert!(!dataset.is_unchanged());
    assert_eq!(message(&error), "a.jsonl changed while it was read");
    assert!(error.hint().is_some());
}

#[test]
fn another_time_and_another_validation_file_are_changes() {
    let directory = tempfile::tempdir().unwrap();
    let row = "{\"text\":\"a\"}\n";
    let (rows, held) = (
        write(directory.path(), "a.jsonl", row.repeat(3)),
        write(directory.path(), "b.jsonl", row),
    );
    let mut config = config(&rows);
    config.validation = Validation::File(held.clone());
    for path in [rows, held] {
        let dataset = Dataset::load("a", &config, 0).unwrap();
        assert!(dataset.is_unchanged());
        // As long as it was.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(!dataset.is_unchanged(), "{}", path.display());
    }
}

/// Whichever split the first row is in.
#[test]
fn no_split_of_a_file_that_changed_is_shown_as_empty() {
    let (_model, tokenizer) = crate::common::model(None);
    let directory = tempfile::tempdir().unwrap();
    let row = "{\"text\":\"a\"}\n";
    let mut config = config(write(directory.path(), "a.jsonl", row.repeat(4)));
    config.validation = Validation::Fraction(0.5);
    let dataset = Dataset::load("a", &config, 0).unwrap();
    write(directory.path(), "a.jsonl", row.repeat(5));
    for split in [Split::Training, Split::Validation] {
        let shown = dataset.preview(split, Shown::First(1), &tokenizer, 9, false);
        assert!(
            matches!(shown, Err(DataError::Changed(_))),
            "{split:?}: {shown:?}"
        );
    }
}

/// A template needs no look at each file.
#[test]
fn a_file_without_rows_is_refused_behind_others_too() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(write(directory.path(), "a.jsonl", "{\"text\":\"a\"}\n"));
    config.path.push(write(directory.path(), "b.jsonl", "\n"));
    config.template = Some("{{ text }}".to_owned());
    let found = Dataset::load("a", &config, 0);
    assert!(
        matches!(&found, Err(DataError::Empty(path)) if path.ends_with("b.jsonl")),
        "{found:?}"
    );
}

#[test]
fn addresses_and_rows_of_several_lines_have_hints() {
    let directory = tempfile::tempdir().unwrap();
    let hint = |path: &str| {
        let config = config(directory.path().join(path));
        let error = Dataset::load("a", &config, 0).unwrap_err();
        error.hint().unwrap_or_default()
    };
    for path in [
        "https://x.org/a.jsonl",
        "https:/x.org/a.csv",
        "hf://a/b",
        "s3:/a/b.gz",
    ] {
        assert!(
            hint(path).starts_with("only local files are supported"),
            "{path}"
        );
    }
    for path in ["a.jsonl", "a:/b.jsonl", "a/b:"] {
        assert_eq!(hint(path), "", "{path}");
    }
    let pretty = "{\n  \"text\": \"a\"\n}\n";
    for (name, has_hint) in [("p.jsonl", true), ("p.NDJSON", true), ("p.json", false)] {
        write(directory.path(), name, pretty.repeat(2));
        assert_eq!(
            hint(name).contains("each line must hold one object"),
            has_hint,
            "{name}"
        );
    }
}

#[test]
fn chats_are_checked_when_they_are_read() {
    let chat = |messages: &str| error("a.jsonl", format!("{{\"messages\":{messages}}}"));
    assert_eq!(
        chat("[]"),
        "a.jsonl:1: column `messages` is an empty list, expected a list of messages"
    );
    assert_eq!(
        chat("[3]"),
        "a.jsonl:1: message 1 of column `messages`: expected an object, found the number 3"
    );
    assert_eq!(
        chat(r#"[{"content":"a"}]"#),
        "a.jsonl:1: message 1 of column `messages`: has neither `role` nor `from`"
    );
    assert!(chat(r#"[{"from":"alien","value":"a"}]"#).contains("unknown speaker `alien`"));
    assert!(chat(r#"[{"from":"gpt","value":1}]"#).contains("`value` is the number 1"));
}

#[test]
fn empty_and_foreign_files_are_refused() {
    for (name, text) in [
        ("a.jsonl", ""),
        ("a.jsonl", "\n \n"),
        ("a.json", "[]"),
        ("a.csv", ""),
        ("a.csv", "text\n"),
    ] {
        assert!(
            matches!(load(name, text), Err(DataError::Empty { .. })),
            "{name} {text:?}"
        );
    }
    let parquet = load("a.parquet", "PAR1").unwrap_err();
    assert!(
        message(&parquet).contains("a.parquet` as Parquet: "),
        "{parquet}"
    );
    assert!(parquet.hint().is_some());
    assert!(matches!(
        load("a.txt", "a"),
        Err(DataError::UnknownExtension { .. })
    ));
    let missing = load_with("a.jsonl", "", |config| {
        config.path[0].set_extension("json");
    });
    assert!(matches!(missing, Err(DataError::Io { .. })));
    let none = load_with("a.jsonl", "", |config| config.path.clear());
    assert!(matches!(none, Err(DataError::NoPath { .. })));
}

#[test]
fn a_mistyped_optional_column_is_found() {
    let columns = |input: &str| loraloom_config::ColumnMap::Instruction {
        instruction: "q".into(),
        input: Some(input.into()),
        output: "a".into(),
    };
    let rows = "{\"q\":\"1\",\"a\":\"2\"}\n{\"q\":\"1\",\"x\":\"y\",\"a\":\"2\"}\n";
    let load = |input| {
        load_with("a.jsonl", rows, |config| {
            config.columns = Some(columns(input));
        })
    };
    assert!(load("x").is_ok());
    assert_eq!(
        message(&load("z").unwrap_err()),
        "a.jsonl:1: no column `z`; the row has `q`, `a`"
    );
}

#[test]
fn an_optional_column_that_the_last_row_lacks_is_no_typo() {
    let rows = "{\"q\":\"1\",\"x\":\"y\",\"a\":\"2\"}\n{\"q\":\"1\",\"a\":\"2\"}\n";
    let found = load_with("a.jsonl", rows, |config| {
        config.columns = Some(loraloom_config::ColumnMap::Instruction {
            instruction: "q".into(),
            input: Some("x".into()),
            output: "a".into(),
        });
    });
    assert_eq!(found.unwrap().num_train_rows(), 2);
}

#[test]
fn a_line_of_ten_megabytes_is_a_row() {
    let (_directory, tokenizer) = crate::common::model(None);
    let line = format!(
        r#"{{"q":"short","a":"{}"}}"#,
        "many words ".repeat(1_000_000)
    );
    let started = Instant::now();
    let dataset = load_with("a.jsonl", line, |config| {
        config.columns = Some(pair("q", "a"));
    })
    .unwrap();
    let train = dataset.encode(&tokenizer, 64, false).unwrap().train;
    assert_eq!(train.samples.get(0).unwrap().ids.len(), 64);
    assert_eq!(train.report.longest, 11_000_007);
    // Unoptimised and on a busy machine it takes seconds; anything quadratic would take days.
    assert!(
        started.elapsed() < Duration::from_mins(5),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn nested_json_does_not_overflow_the_stack() {
    let deep = format!("{{\"text\":{}", "[".repeat(100_000));
    assert!(matches!(
        load("a.jsonl", deep),
        Err(DataError::Malformed { .. })
    ));
}

proptest! {
    /// Whatever a file holds, reading it ends in rows or in an error.
    #[test]
    fn no_file_panics(bytes: Vec<u8>, name in "a\\.(jsonl|json|csv|tsv)") {
        let _ = load(&name, bytes);
    }

    #[test]
    fn no_nearly_valid_file_panics(
        text in r#"(\[|\{|\}|\]|"text"|"messages"|"role"|:|,|1|null|"a"|\n|\\|"|\u{feff}){0,24}"#,
        name in "a\\.(jsonl|json|csv|tsv)",
    ) {
        let _ = load(&name, text);
    }
}
