//! Rows with preferences: formats, samples, agreement with TRL, and what is refused.

use std::{fs, path::Path};

use loraloom_config::{ColumnMap, Preference, Validation};
use loraloom_data::{Prompt, Sample, Shown, Split, Tokenizer};
use serde_json::{Value, json};

use crate::common::{CHATML, complaint, load, load_with, masked, model, remarks, samples, write};

/// A user's turn in [`CHATML`], and the beginning of an answer.
fn asked(text: &str) -> String {
    format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// Checks a row's detected format and its samples.
fn check(row: &Value, format: &str, expected: &[String]) {
    let (_directory, tokenizer) = model(Some(CHATML));
    let dataset = load("rows.jsonl", row.to_string()).unwrap();
    assert_eq!(dataset.format().to_string(), format);
    let warnings = dataset.warnings().iter();
    let mut warnings = warnings.filter(|warning| !warning.message.contains("have the label"));
    assert_eq!(warnings.next(), None, "{row}");
    assert_eq!(masked(&dataset, &tokenizer, false), expected, "{row}");
    let train = dataset.encode(&tokenizer, 200, false).unwrap().train;
    let preferred = samples(&train).into_iter().map(|sample| sample.preferred);
    let preferred: Vec<_> = preferred.collect();
    let preference = match expected.len() {
        1 => Preference::Rated,
        _ => Preference::Pairs,
    };
    assert_eq!(dataset.format().preference(), Some(preference));
    assert_eq!(preferred, [Some(true), Some(false)][..expected.len()]);
    assert_eq!(
        (train.samples.per_row(), train.samples.rows()),
        (expected.len(), 1)
    );
    assert_eq!((train.report.rows, train.report.kept), (1, 1));
}

#[test]
fn texts_are_two_samples_of_one_prompt_or_one_that_is_rated() {
    let texts = |prompt: &str| ["a", "b"].map(|side| format!("<s>{prompt}⟦{side}</s>⟧"));
    for (row, format, expected) in [
        (
            json!({"prompt": "p", "chosen": "a", "rejected": "b"}),
            "pairs (prompt, chosen, rejected)",
            texts("p"),
        ),
        (
            json!({"instruction": "p", "input": "i", "chosen": "a", "rejected": "b"}),
            "instruction pairs (instruction, input, chosen, rejected)",
            texts("p\n\ni\n"),
        ),
        (
            json!({"system": "s", "question": "p", "chosen": "a", "rejected": "b"}),
            "instruction pairs (question, chosen, rejected)",
            texts("s\n\np\n"),
        ),
        (
            json!({"system": "s", "instruction": "p", "chosen_response": "a", "rejected_response": "b"}),
            "instruction pairs (instruction, input, chosen_response, rejected_response)",
            texts("s\n\np\n"),
        ),
    ] {
        check(&row, format, &expected);
    }
    for (row, format, expected) in [
        (
            json!({"prompt": "p", "completion": "a", "label": true}),
            "rated prompt/completion (prompt, completion, label)",
            texts("p"),
        ),
        (
            json!({"instruction": "p", "output": "a", "kto_tag": true, "system": "s"}),
            "rated instruction (instruction, input, output, kto_tag)",
            texts("s\n\np\n"),
        ),
    ] {
        check(&row, format, &expected[..1]);
    }
}

#[test]
fn chats_are_two_samples_of_one_prompt_or_one_that_is_rated() {
    let turn = |text: &str| format!("<s>{}⟦{text}<|im_end|>\n⟧", asked("p"));
    let chats = ["a", "b"].map(turn);
    let (user, a, b) = (
        json!([message("user", "p")]),
        message("assistant", "a"),
        message("assistant", "b"),
    );
    let whole = |answer: &Value| json!([message("user", "p"), answer]);
    let share_gpt = |from: &str, value: &str| json!({"from": from, "value": value});
    for row in [
        json!({"prompt": user, "chosen": [a], "rejected": [b]}),
        json!({"prompt": user, "chosen": "a", "rejected": b}),
        // A text prompt beside whole chats contains no more than they do.
        json!({"prompt": "p", "chosen": whole(&a), "rejected": whole(&b), "messages": whole(&a)}),
        json!({"prompt": user, "chosen": whole(&a), "rejected": whole(&b)}),
    ] {
        check(&row, "pairs (prompt, chosen, rejected)", &chats);
    }
    let row = json!({"chosen": whole(&a), "rejected": whole(&b)});
    check(&row, "pairs (chosen, rejected)", &chats);
    let row = json!({
        "conversations": [share_gpt("human", "p")],
        "chosen": share_gpt("gpt", "a"), "rejected": share_gpt("gpt", "b"),
    });
    check(&row, "pairs (conversations, chosen, rejected)", &chats);
    // As in Axolotl; whole chats contain their own prompt.
    let row = json!({"messages": user, "chosen": a, "rejected": b, "tools": "[]"});
    check(&row, "pairs (messages, chosen, rejected)", &chats);
    let row = json!({"messages": whole(&a), "chosen": whole(&a), "rejected": whole(&b)});
    check(&row, "pairs (chosen, rejected)", &chats);
    let row = json!({"prompt": user, "completion": [a], "label": true});
    check(
        &row,
        "rated prompt/completion (prompt, completion, label)",
        &chats[..1],
    );
    let row = json!({"messages": whole(&a), "label": true});
    check(&row, "rated messages (messages, label)", &chats[..1]);
}

/// As mLoRA writes its prompts, and its Jinja renders them.
#[test]
fn a_template_with_a_switch_renders_two_samples() {
    let (_directory, tokenizer) = model(None);
    let row = json!({"q": "p", "good": "a", "bad": "b", "is_chosen": "x", "is_origin": "y"});
    let read = |template: &str| {
        load_with("rows.jsonl", row.to_string(), |config| {
            config.template = Some(template.to_owned());
        })
    };
    for (template, format, expected) in [
        (
            "{{ data_point['q'] }} {% if is_chosen %}{{ good }}{% else %}{{ bad }}{% endif %}",
            "pairs (template)",
            ["<s>⟦p a</s>⟧", "<s>⟦p b</s>⟧"],
        ),
        (
            "{{ q }}{% generation %}{{ good if is_chosen else bad }}{% endgeneration %}",
            "pairs (template)",
            ["<s>p⟦a</s>⟧", "<s>p⟦b</s>⟧"],
        ),
        (
            "{{ q if is_origin else bad }} {{ good }}",
            "paraphrases (template)",
            ["<s>⟦p a</s>⟧", "<s>⟦b a</s>⟧"],
        ),
        (
            "{{ q }}{{ q if is_origin else q }}",
            "paraphrases (template)",
            ["<s>⟦pp</s>⟧"; 2],
        ),
    ] {
        let dataset = read(template).unwrap();
        assert_eq!(dataset.format().to_string(), format, "{template}");
        assert_eq!(masked(&dataset, &tokenizer, false), expected);
        let train = dataset.encode(&tokenizer, 200, false).unwrap().train;
        assert_eq!((train.samples.per_row(), train.samples.rows()), (2, 1));
        let pairs = format.starts_with("pairs");
        let preferred = samples(&train).into_iter().map(|sample| sample.preferred);
        let preferred: Vec<_> = preferred.collect();
        let expected = [true, false].map(|preferred| pairs.then_some(preferred));
        assert_eq!(preferred, expected);
    }
    let error = read("{{ q if is_chosen else q }}").unwrap_err();
    insta::assert_snapshot!(complaint(&error));
    // A column of this name is no switch.
    let dataset = read("{{ data_point.is_chosen }}").unwrap();
    assert_eq!(masked(&dataset, &tokenizer, false), ["<s>⟦x</s>⟧"]);
}

#[test]
fn labels_that_are_classes_are_none() {
    let plain = |row: Value| {
        load("rows.jsonl", row.to_string())
            .unwrap()
            .format()
            .preference()
    };
    for label in [json!(1), json!("sports"), json!(null)] {
        assert_eq!(
            plain(json!({"prompt": "p", "completion": "a", "label": label})),
            None
        );
    }
    assert_eq!(plain(json!({"text": "p", "label": true})), None);
    let csv = load("rows.csv", "prompt,completion,label\np,a,false\np,b,True\n").unwrap();
    assert_eq!(csv.format().preference(), Some(Preference::Rated));
    let (_directory, tokenizer) = model(None);
    let samples = samples(&csv.encode(&tokenizer, 9, false).unwrap().train);
    assert_eq!(
        [samples[0].preferred, samples[1].preferred],
        [Some(false), Some(true)]
    );
}

#[test]
fn a_template_renders_the_prompt_or_the_chat() {
    let (_directory, tokenizer) = model(None);
    let row = json!({"prompt": "p", "chosen": "a", "rejected": "b"}).to_string();
    let chat =
        json!({"prompt": [message("user", "p")], "chosen": "a", "rejected": "b"}).to_string();
    let load = |row: &str, template: &str| {
        load_with("rows.jsonl", row, |config| {
            config.template = Some(template.to_owned());
            config.columns = Some(ColumnMap::Pairs {
                prompt: Some("prompt".into()),
                chosen: "chosen".into(),
                rejected: "rejected".into(),
            });
        })
    };
    let prompt = load(&row, "Q: {{ prompt }} A: ").unwrap();
    assert_eq!(masked(&prompt, &tokenizer, false)[0], "<s>Q: p A: ⟦a</s>⟧");
    for row in [&row, &chat] {
        let dataset = load(row, CHATML).unwrap();
        let expected = format!("<s>{}⟦b<|im_end|>\n⟧", asked("p"));
        assert_eq!(masked(&dataset, &tokenizer, false)[1], expected);
    }
    let whole = chat.replace("\"a\"", "[{\"role\":\"assistant\",\"content\":\"a\"}]");
    let error = load(&whole, "Q: {{ prompt }}").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the template renders only the prompt"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("`messages`"));
}

/// The samples of a case, `None` if it cannot be used.
fn encoded(case: &Value, tokenizer: &Tokenizer) -> Option<Vec<Sample>> {
    let length = case["max_seq_len"].as_u64().unwrap() as usize;
    let dataset = load("rows.jsonl", case["row"].to_string()).unwrap();
    let rows = dataset
        .preview(Split::Training, Shown::First(1), tokenizer, length, false)
        .unwrap();
    let is_dropped = rows[0].dropped;
    (!is_dropped).then(|| rows.into_iter().map(|row| row.sample).collect())
}

#[test]
fn rows_are_prepared_as_in_trl() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cases = fs::read_to_string(here.join("tests/fixtures/preferences/cases.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&cases).unwrap();
    let (mut same, mut merged) = (0, 0);
    for case in &cases {
        let source = here.join("../..").join(case["tokenizer"].as_str().unwrap());
        let directory = tempfile::tempdir().unwrap();
        for name in [
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ] {
            let file = source.join(name);
            if file.is_file() {
                fs::copy(file, directory.path().join(name)).unwrap();
            }
        }
        if let Some(template) = case["template"].as_str() {
            write(directory.path(), "chat_template.jinja", template);
        }
        let tokenizer = Tokenizer::load(directory.path()).unwrap();
        // TRL leaves BOS to the tokenizer or the template; ours is there once in any case, within max_seq_len.
        let mut longer = case.clone();
        let numbers = |value: &Value| -> Vec<u32> {
            let numbers = value.as_array().unwrap().iter();
            numbers
                .map(|number| number.as_u64().unwrap() as u32)
                .collect()
        };
        let is_bos = |id: &u32| Some(*id) == tokenizer.bos();
        let sides = case["sides"].as_array();
        let written =
            sides.is_some_and(|sides| numbers(&sides[0]["ids"]).first().is_some_and(is_bos));
        if tokenizer.bos().is_some() && sides.is_some() && !written {
            longer["max_seq_len"] = json!(case["max_seq_len"].as_u64().unwrap() + 1);
        }
        let Some(ours) = encoded(&longer, &tokenizer) else {
            // TRL drops the row if the prompt fills it, and keeps sides that the cut makes equal.
            assert!(
                sides.is_none_or(|sides| sides[0]["ids"] == sides[1]["ids"]),
                "{case}"
            );
            continue;
        };
        let sides = sides.unwrap_or_else(|| panic!("TRL drops {case}"));
        assert_eq!(ours.len(), sides.len());
        for (sample, side) in ours.iter().zip(sides) {
            let rest = |ids: &[u32]| ids[ids.iter().take_while(|id| is_bos(id)).count()..].to_vec();
            let (ids, expected) = (rest(&sample.ids), rest(&numbers(&side["ids"])));
            let mask: Vec<u32> = sample
                .is_target
                .iter()
                .map(|target| u32::from(*target))
                .collect();
            let expected_mask = numbers(&side["mask"]);
            let mask_of = |mask: &[u32], ids: &[u32]| mask[mask.len() - ids.len()..].to_vec();
            // TRL joins the space at the end of this prompt to the completion.
            if case["row"]["prompt"]
                .as_str()
                .is_some_and(|prompt| prompt.ends_with(' '))
            {
                let text = |ids: &[u32]| tokenizer.decode(ids, true).unwrap();
                assert_eq!(text(&ids), text(&expected));
                merged += 1;
                continue;
            }
            assert_eq!(ids, expected, "{case}");
            assert_eq!(
                mask_of(&mask, &ids),
                mask_of(&expected_mask, &expected),
                "{case}"
            );
            same += 1;
        }
    }
    assert!(
        same >= 80 && merged >= 15,
        "{same} samples, {merged} merged"
    );
}

/// Remarks about rows.
fn said(name: &str, rows: &[Value], max_seq_len: usize) -> String {
    let (_directory, tokenizer) = model(Some(CHATML));
    let rows: Vec<String> = rows.iter().map(|row| format!("{row}\n")).collect();
    let said = remarks("rows.jsonl", rows.concat(), &tokenizer, max_seq_len, |_| {});
    format!("# {name}\n{said}")
}

fn pair(chosen: impl Into<Value>, rejected: impl Into<Value>) -> Value {
    json!({"prompt": "p", "chosen": chosen.into(), "rejected": rejected.into()})
}

fn rated(label: impl Into<Value>) -> Value {
    json!({"prompt": "p", "completion": "a", "label": label.into()})
}

#[test]
fn rows_that_say_nothing_are_counted_and_refused() {
    let good = || pair("aaaa", "bbbb");
    let long = json!({"prompt": "ppppp", "chosen": "a", "rejected": "b"});
    let long_rated = json!({"prompt": "ppppp", "completion": "a", "label": true});
    let all = [
        said("good", &[good()], 64),
        said("equal", &[good(), pair("a", "a"), pair("b", "b")], 64),
        said(
            "empty or missing",
            &[
                good(),
                pair("", "b"),
                pair("a", " \n"),
                pair("a", Value::Null),
                json!({"prompt": "p", "chosen": "a"}),
                pair(json!([]), "b"),
                pair(json!([message("assistant", "")]), "b"),
                pair("c", "c"),
            ],
            64,
        ),
        said("of another type", &[good(), pair(3, "b")], 64),
        said(
            "labels",
            &[rated(true), rated(1), rated(0), rated("yes")],
            64,
        ),
        said(
            "a row without a label",
            &[
                json!({"prompt": "p", "completion": "a"}),
                rated(true),
                rated(false),
            ],
            64,
        ),
        said(
            "labels of LLaMA-Factory",
            &[json!({"prompt": "p", "completion": "a", "kto_tag": 1})],
            64,
        ),
        said("one label", &[rated(false), rated(false)], 64),
        said(
            "equal once they are cut",
            &[good(), pair("aaaab", "aaaac")],
            6,
        ),
        said("nothing left of a pair", &[good(), long], 6),
        said(
            "a rated row is dropped",
            &[rated(true), rated(false), long_rated],
            6,
        ),
    ];
    insta::assert_snapshot!(all.concat());
}

#[test]
fn chats_that_say_nothing_are_counted_and_refused() {
    let user = |text: &str| message("user", text);
    let answer = |text: &str| message("assistant", text);
    let whole =
        |chosen: &[Value], rejected: &[Value]| json!({"chosen": chosen, "rejected": rejected});
    let other = whole(
        &[user("a"), user("b"), answer("c")],
        &[user("a"), user("c"), answer("d")],
    );
    let apart = whole(&[user("a"), answer("c")], &[user("b"), answer("c")]);
    let excluded = json!({"role": "assistant", "content": "a", "weight": 0});
    let all = [
        said("other prompts", &[other], 64),
        said("nothing in common", &[apart], 64),
        said(
            "texts without a prompt",
            &[json!({"chosen": "a", "rejected": "b"})],
            64,
        ),
        said(
            "no answer",
            &[json!({"messages": [user("a")], "label": true})],
            64,
        ),
        said("an excluded message", &[pair(json!([excluded]), "b")], 64),
    ];
    insta::assert_snapshot!(all.concat());
}

#[test]
fn preferences_take_no_tokens_of_prompts() {
    let (_directory, tokenizer) = model(None);
    let row = json!({"prompt": "p", "chosen": "a", "rejected": "b"}).to_string();
    let error = load("rows.jsonl", row)
        .unwrap()
        .encode(&tokenizer, 64, true)
        .unwrap_err();
    assert!(error.to_string().contains("train_on_prompt"), "{error}");
    assert!(error.hint().unwrap().contains("train_on_prompt: false"));
}

#[test]
fn chats_without_a_template_are_refused_and_texts_need_none() {
    let (_directory, tokenizer) = model(None);
    let whole = |answer: &str| json!([message("user", "p"), message("assistant", answer)]);
    for row in [
        json!({"chosen": whole("a"), "rejected": whole("b")}),
        json!({"prompt": "p", "chosen": whole("a"), "rejected": whole("b")}),
    ] {
        let dataset = load("rows.jsonl", row.to_string()).unwrap();
        let error = dataset.encode(&tokenizer, 64, false).unwrap_err();
        assert!(error.to_string().contains("no chat template"), "{error}");
        assert!(error.hint().unwrap().contains("chat_template.jinja"));
    }
}

#[test]
fn prompts_that_the_chat_template_writes_otherwise_are_warned_of() {
    let other = CHATML.replace(
        "assistant\\n' }}{% endif",
        "assistant\\n<think>' }}{% endif",
    );
    let (_directory, tokenizer) = model(Some(&other));
    let row = json!({"prompt": [message("user", "p")], "chosen": "a", "rejected": "b"}).to_string();
    let said = remarks("rows.jsonl", row, &tokenizer, 200, |_| {});
    assert!(
        said.contains("the prompts of 1 of 1 rows have other tokens"),
        "{said}"
    );
    assert!(said.contains("rows.jsonl:1"), "{said}");
}

#[test]
fn pairs_are_surveyed_and_split_as_rows() {
    let (_directory, tokenizer) = model(None);
    let rows: Vec<String> = (0..20)
        .map(|row| {
            let (chosen, rejected) = (format!("good {}", row % 10), "x".repeat(row + 1));
            json!({"prompt": "p", "chosen": chosen, "rejected": rejected}).to_string() + "\n"
        })
        .collect();
    let dataset = load_with("rows.jsonl", rows.concat(), |config| {
        config.validation = Validation::Fraction(0.25);
    })
    .unwrap();
    let encoded = dataset.encode(&tokenizer, 16, false).unwrap();
    let survey = dataset.survey(&tokenizer, 16, false).unwrap();
    assert_eq!(survey.train.report, encoded.train.report);
    let [train, validation] = [encoded.train, encoded.validation.unwrap()];
    assert_eq!((train.samples.len(), train.samples.rows()), (30, 15));
    assert_eq!(
        (validation.samples.len(), validation.samples.rows()),
        (10, 5)
    );
    assert_eq!(survey.train.lengths.len(), 15);
    assert_eq!(
        survey.train.report.longest,
        *survey.train.lengths.iter().max().unwrap()
    );
    for row in 0..15 {
        let [chosen, rejected] = train.samples.row(row).unwrap().try_into().unwrap();
        assert_eq!(
            [chosen.preferred, rejected.preferred],
            [Some(true), Some(false)]
        );
        let prompt = |sample: &Sample| sample.ids[..sample.last_targets().start].to_vec();
        assert_eq!(prompt(&chosen), prompt(&rejected));
    }
    let (some, locations) = dataset
        .encode_split(Split::Training, 3, &tokenizer, 16, false)
        .unwrap();
    assert_eq!((some.samples.len(), locations.len()), (6, 6));
    assert_eq!(locations[0], locations[1]);
}

#[test]
fn the_prompt_of_a_pair_is_answered() {
    let (_directory, tokenizer) = model(Some(CHATML));
    let directory = tempfile::tempdir().unwrap();
    let whole = |answer: &str| json!([message("user", "p"), message("assistant", answer)]);
    for (row, expected) in [
        (
            json!({"prompt": "p", "chosen": "a", "rejected": "b"}),
            "p".to_owned(),
        ),
        (
            json!({"prompt": [message("user", "p")], "completion": "a", "label": true}),
            asked("p"),
        ),
        (
            json!({"prompt": "p", "chosen": whole("a"), "rejected": whole("b")}),
            asked("p"),
        ),
        (
            json!({"chosen": whole("a"), "rejected": whole("b")}),
            asked("p"),
        ),
        (json!({"messages": whole("a"), "label": false}), asked("p")),
    ] {
        let path = write(directory.path(), "prompts.jsonl", row.to_string());
        let (prompts, _) = Prompt::read(&path, &tokenizer, false).unwrap();
        assert_eq!(prompts[0].text, expected, "{row}");
    }
}
