//! What was probably not meant is said, and what cannot be meant is refused.

use loraloom_config::{ColumnMap, DatasetConfig, Validation};

use crate::common::{CHATML, model, pair, remarks};

/// What is said of each case, below its name.
fn said(cases: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let cases = cases.into_iter();
    let cases: Vec<_> = cases
        .map(|(name, said)| format!("# {name}\n{said}"))
        .collect();
    cases.concat()
}

fn chat(messages: &[(&str, &str)]) -> String {
    let messages = messages.iter();
    let messages: Vec<_> = messages
        .map(|(role, content)| serde_json::json!({"role": role, "content": content}))
        .collect();
    serde_json::json!({ "messages": messages }).to_string() + "\n"
}

fn nothing(_: &mut DatasetConfig) {}

#[test]
fn rows_without_anything_to_learn() {
    let (_directory, tokenizer) = model(None);
    let say = |name, text: &str, change: fn(&mut DatasetConfig)| {
        remarks(name, text, &tokenizer, 64, change)
    };
    let pairs = "{\"prompt\":\"a\",\"completion\":\"\"}\n{\"prompt\":\"b\",\"completion\":\" \"}\n";
    let one = format!("{pairs}{{\"prompt\":\"c\",\"completion\":\"d\"}}\n");
    let all = said([
        ("no completion", say("a.jsonl", pairs, nothing)),
        ("one completion", say("a.jsonl", &one, nothing)),
        ("no text", say("a.csv", "text,id\n,1\n,2\n", nothing)),
        ("one text", say("a.csv", "text,id\n,1\na,2\n", nothing)),
        (
            "a template that prints nothing",
            say("a.jsonl", &one, |config| {
                config.template = Some("{% if x %}{{ x }}{% endif %}".into());
            }),
        ),
        (
            "an empty template",
            say("a.jsonl", &one, |config| {
                config.template = Some(" \n".into());
            }),
        ),
        (
            "an empty template for the prompt",
            say("a.jsonl", &one, |config| {
                config.template = Some(String::new());
                config.columns = Some(pair("prompt", "completion"));
            }),
        ),
    ]);
    insta::assert_snapshot!(all);
}

#[test]
fn chats_without_an_assistant() {
    let (_directory, tokenizer) = model(Some(CHATML));
    let say = |text: &str, max_seq_len| remarks("a.jsonl", text, &tokenizer, max_seq_len, nothing);
    let good = chat(&[("user", "a"), ("assistant", "b")]);
    let alien = chat(&[("human", "a"), ("gpt", "b")]);
    let silent = chat(&[("system", "a"), ("user", "b")]);
    let untrained = r#"{"messages":[{"role":"assistant","content":"a","train":false}]}"#;
    let empty = chat(&[("user", "a"), ("assistant", "")]);
    let (_empty_directory, without_text) = model(Some(""));
    let (_other_directory, without_block) = model(Some(
        "{% for m in messages %}{% if m.role == 'model' %}{% generation %}{{ m.content }}{% endgeneration %}\
         {% else %}{{ m.content }}{% endif %}{% endfor %}",
    ));
    let all = said([
        ("only others", say(&silent, 64)),
        ("only others, and cut", say(&silent, 8)),
        ("other names for roles", say(&alien.repeat(3), 64)),
        (
            "other names in some rows",
            say(&format!("{good}{alien}"), 64),
        ),
        (
            "no assistant in some rows",
            say(&format!("{good}{silent}{silent}"), 64),
        ),
        ("no message to be trained on", say(untrained, 64)),
        ("an empty answer", say(&format!("{good}{empty}"), 64)),
        (
            "an empty chat template",
            remarks("a.jsonl", &good, &without_text, 64, nothing),
        ),
        (
            "a chat template that marks another role",
            remarks("a.jsonl", &good, &without_block, 64, nothing),
        ),
    ]);
    insta::assert_snapshot!(all);
}

#[test]
fn rows_that_are_cut() {
    let (_directory, tokenizer) = model(None);
    let say = |text: &str, max_seq_len| remarks("a.jsonl", text, &tokenizer, max_seq_len, nothing);
    let text = |length: usize| format!("{{\"text\":\"{}\"}}\n", "x".repeat(length));
    let prompt = format!(
        "{{\"prompt\":\"{}\",\"completion\":\"a\"}}\n",
        "x".repeat(100)
    );
    let all = said([
        ("most of it", say(&text(3000).repeat(3), 64)),
        ("nearly all of it", say(&text(100_000), 64)),
        ("a half", say(&format!("{}{}", text(126), text(10)), 64)),
        ("one token", say(&text(1000), 1001)),
        (
            "all targets of some",
            say(&format!("{prompt}{}", prompt.replace('x', "")), 64),
        ),
        ("all targets", say(&prompt, 64)),
    ]);
    insta::assert_snapshot!(all);
}

#[test]
fn settings_that_were_hardly_meant() {
    let (_directory, tokenizer) = model(None);
    let rows = "{\"prompt\":\"a\",\"completion\":\"b\",\"more\":\"c\"}\n";
    let say = |change: fn(&mut DatasetConfig)| remarks("a.jsonl", rows, &tokenizer, 64, change);
    let validated = |trained: usize, other: usize| {
        remarks("a.jsonl", rows, &tokenizer, 64, |config| {
            let path = config.path[0].with_file_name("b.jsonl");
            let others = (0..other).map(|row| rows.replace('a', &row.to_string()));
            let text = rows.repeat(trained) + &others.collect::<String>();
            std::fs::write(&path, text).unwrap();
            config.validation = Validation::File(path);
        })
    };
    let all = said([
        ("nothing odd", say(nothing)),
        (
            "prompt and completion from one column",
            say(|config| config.columns = Some(pair("more", "more"))),
        ),
        (
            "input and output from one column",
            say(|config| {
                config.columns = Some(ColumnMap::Instruction {
                    instruction: "prompt".into(),
                    input: Some("more".into()),
                    output: "more".into(),
                });
            }),
        ),
        (
            "the same file twice",
            say(|config| config.path.push(config.path[0].clone())),
        ),
        (
            "the same file by another name",
            say(|config| {
                let other = config.path[0].parent().unwrap().join("./b.jsonl");
                std::fs::hard_link(&config.path[0], &other).unwrap();
                config.path.push(other.with_file_name("./a.jsonl"));
            }),
        ),
        (
            "validation on what is trained on",
            say(|config| config.validation = Validation::File(config.path[0].clone())),
        ),
        ("validation on other rows and one of these", validated(1, 2)),
        ("validation on one other row and these", validated(2, 1)),
        (
            "a prompt that reads the completion",
            say(|config| {
                config.template = Some("{{ prompt }}{{ data_point.completion }}".to_owned());
                config.columns = Some(pair("prompt", "completion"));
            }),
        ),
    ]);
    insta::assert_snapshot!(all);
}

#[test]
fn templates_that_print_no_column() {
    let (_directory, tokenizer) = model(None);
    let rows = "{\"prompt\":\"a\",\"completion\":\"b\"}\n{\"prompt\":\"c\",\"completion\":\"d\"}\n";
    let say = |rows: &str, template: &str, columns: Option<ColumnMap>| {
        remarks("a.jsonl", rows, &tokenizer, 64, |config| {
            config.template = Some(template.to_owned());
            config.columns = columns;
        })
    };
    let prompt = || Some(pair("prompt", "completion"));
    let all = said([
        ("a constant", say(rows, "const", None)),
        ("as Python's format", say(rows, "{prompt}", None)),
        ("a constant prompt", say(rows, "{prompt}\n", prompt())),
        ("one of two", say(rows, "{{ prompt }} {completion}", None)),
        (
            "no column's name",
            say(rows, "{{prompt}} {x} {{{prompt: 1}}}", None),
        ),
        ("a row alone", say(&rows[..rows.len() / 2], "const", None)),
    ]);
    insta::assert_snapshot!(all);
}

/// The first and the last row have the same text.
#[test]
fn templates_that_print_another_text_between_two_alike_are_no_constants() {
    let (_directory, tokenizer) = model(None);
    let row = |prompt: &str, completion: &str| {
        serde_json::json!({"prompt": prompt, "completion": completion}).to_string() + "\n"
    };
    let rows = row("a", "b") + &row("c", "d") + &row("a", "e");
    let said = remarks("a.jsonl", rows, &tokenizer, 64, |config| {
        config.template = Some("{{ prompt }}".to_owned());
    });
    assert_eq!(said, "");
}

#[test]
fn columns_that_were_probably_meant_to_be_trained_on() {
    let (_directory, tokenizer) = model(Some(CHATML));
    let say = |row: serde_json::Value, change: fn(&mut DatasetConfig)| {
        let rows = format!("{row}\n").repeat(2);
        remarks("a.jsonl", rows, &tokenizer, 64, change)
    };
    let json = |text: &str| serde_json::from_str(text).unwrap();
    let pair =
        r#"{"prompt":"a","completion":"b","system":"s","history":[["a","b"]],"id":1,"source":"x"}"#;
    let alpaca =
        r#"{"instruction":"a","output":"b","system":"s","history":[["a","b"]],"input":"i"}"#;
    let chat = r#"{"messages":[{"role":"assistant","content":"a"}],"system":"s","tools":[],"context":"c"}"#;
    let all = said([
        ("pairs", say(json(pair), nothing)),
        (
            "pairs of a template",
            say(json(pair), |config| {
                config.template = Some("{{ prompt }}{{ id }}".into());
            }),
        ),
        ("instructions", say(json(alpaca), nothing)),
        (
            "instructions without their input",
            say(json(alpaca), |config| {
                config.columns = Some(ColumnMap::Instruction {
                    instruction: "instruction".into(),
                    input: None,
                    output: "output".into(),
                });
            }),
        ),
        ("chats", say(json(chat), nothing)),
        (
            "text",
            say(json(r#"{"text":"a","system":"s","context":"c"}"#), nothing),
        ),
        (
            "nothing in them",
            say(
                json(r#"{"prompt":"a","completion":"b","system":" ","history":[],"context":null}"#),
                nothing,
            ),
        ),
    ]);
    insta::assert_snapshot!(all);
}

#[test]
fn nulls_in_templates_and_keys_that_are_there_twice() {
    let (_directory, tokenizer) = model(None);
    let say = |text: &str, template: Option<&str>| {
        remarks("a.jsonl", text, &tokenizer, 64, |config| {
            config.template = template.map(str::to_owned);
        })
    };
    let null = "{\"text\":\"a\",\"note\":\"b\"}\n{\"text\":\"a\",\"note\":null}\n";
    let twice = "{\"text\":\"a\"}\n{\"text\":\"a\",\"id\":1,\"text\":\"b\"}\n";
    let inner = r#"{"messages":[{"role":"user","role":"assistant","content":"a"}]}"#;
    let all = said([
        ("a null printed", say(null, Some("{{ text }} {{ note }}"))),
        (
            "nulls that are tested for",
            say(
                null,
                Some("{{ text }}{% if note %} {{ note }}{% endif %}{{ note or '' }}"),
            ),
        ),
        ("a key twice", say(twice, None)),
        ("a key of a message twice", say(inner, None)),
        (
            "a key of a document twice",
            remarks(
                "a.json",
                "[{\"text\":\"a\"},\n{\"text\":\"a\",\"text\":\"b\"}]",
                &tokenizer,
                64,
                nothing,
            ),
        ),
    ]);
    insta::assert_snapshot!(all);
}

#[test]
fn quotes_that_seem_to_take_rows() {
    let (_directory, tokenizer) = model(None);
    let say = |cell: &str| {
        let text = format!("prompt,completion\na,b\nc,{cell}\nd,e\n");
        remarks("a.csv", text, &tokenizer, 64, nothing)
    };
    let all = said([
        (
            "rows between two quotes",
            say("\"goat\n1,goat\n2,goat\n3,goat\n4,goat\""),
        ),
        (
            "lines of text",
            say("\"goat\none\ntwo, three\nfour\nfive\""),
        ),
        ("a few lines", say("\"goat\n1,goat\n2,goat\n3,goat\"")),
        (
            "a column of texts",
            remarks(
                "a.csv",
                "text\na\n\"b\nc\nd\ne\nf\"\n",
                &tokenizer,
                64,
                nothing,
            ),
        ),
    ]);
    insta::assert_snapshot!(all);
}
