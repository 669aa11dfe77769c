//! `data preview`: what it shows, and that it counts as `check` and `train` do.

use std::fs;

use serde_json::{Value, json};

use crate::support::Workspace;

/// A model directory with the tokenizer of the fixtures of transformers and this chat template.
fn write_model(here: &Workspace, template: &str) {
    let fixtures = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../data/tests/fixtures/transformers/"
    );
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        here.write(
            &format!("model/{name}"),
            fs::read(format!("{fixtures}{name}")).unwrap(),
        );
    }
    here.write("model/chat_template.jinja", template);
}

fn fixtures() -> Value {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../data/tests/fixtures/transformers/cases.json"
    );
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

const CHAT: &str = "\
model: model
datasets:
  chat: {path: chat.jsonl, columns: {messages: messages}}
adapters:
  - {name: a, dataset: chat, train: {max_seq_len: 1000}}
";

#[test]
fn the_mask_is_that_of_transformers() {
    let here = Workspace::empty();
    here.write("chat.yaml", CHAT);
    let mut compared = 0;
    for case in fixtures()["chats"].as_array().unwrap() {
        let mask: Vec<bool> = match case.get("mask").and_then(Value::as_array) {
            Some(mask) => mask.iter().map(|one| one == 1).collect(),
            None => continue,
        };
        if !mask.contains(&true) {
            continue;
        }
        let name = &case["name"];
        write_model(&here, case["template"].as_str().unwrap());
        let row = json!({ "messages": case["messages"] });
        here.write("chat.jsonl", row.to_string() + "\n");
        let run = here.run(&["data", "preview", "chat.yaml", "--json"]);
        assert_eq!(run.code, 0, "{name}: {}", run.all());
        let dataset = &run.json()["datasets"][0];
        let row = &dataset["rows"][0];
        // transformers leaves BOS to the template; here it is there once in any case.
        let ids: Vec<_> = case["ids"].as_array().unwrap().iter().collect();
        let found: Vec<_> = row["ids"].as_array().unwrap().iter().collect();
        let written = ids.iter().take_while(|id| **id == found[0]).count();
        assert_eq!(found[1..], ids[written..], "{name}");
        let targets = row["targets"].as_array().unwrap().iter();
        let targets: Vec<bool> = targets.map(|target| target == true).collect();
        assert_eq!(targets[1..], mask[written..], "{name}");
        assert_eq!(row["tokens"], found.len());
        assert_eq!(row["location"], "chat.jsonl:1");
        compared += 1;
    }
    assert!(compared >= 8, "{compared} masks were compared");
}

/// Rows of all kinds: kept, cut, cut before their first target, without a target; copies of rows.
fn workspace() -> Workspace {
    let here = Workspace::new();
    let chat = |answer: Value| {
        let user = json!({"role": "user", "content": "Where does the seal live?"});
        json!({"messages": [user, answer]}).to_string() + "\n"
    };
    let answer = |content: &str| json!({"role": "assistant", "content": content});
    let long = |word: &str| [word; 60].join(" ");
    let mut untrained = answer("In the sea.");
    untrained["train"] = false.into();
    let rows = [
        chat(answer("In the sea.")),
        chat(answer("In the sea.")),
        chat(answer(&long("sea"))),
        chat(untrained),
        json!({"messages": [{"role": "user", "content": long("seal")}, answer("In the sea.")]})
            .to_string()
            + "\n",
        chat(answer("On land.")),
    ];
    here.write("data/chat.jsonl", rows.concat());
    here.write(
        "data/heldout.jsonl",
        chat(answer("On land.")) + &chat(answer("In a tree.")),
    );
    let one = "model: tiny-llama\n\
               output_dir: run\n\
               device: cpu\n\
               datasets:\n  chat: {path: data/chat.jsonl, validation: data/heldout.jsonl}\n\
               defaults: {train: {batch_size: 2, max_steps: 1}, lora: {r: 2}}\n\
               adapters:\n  - {name: a, dataset: chat, train: {max_seq_len: 32}}\n";
    here.write("one.yaml", one);
    let other = "  - {name: b, dataset: chat, train: {max_seq_len: 64, train_on_prompt: true}}\n";
    here.write("chat.yaml", one.to_owned() + other);
    here
}

#[test]
fn the_counts_are_those_of_check_and_of_training() {
    let here = workspace();
    let run = here.run(&["data", "preview", "chat.yaml", "--json", "--rows", "2"]);
    assert_eq!(run.code, 0, "{}", run.all());
    let json = run.json();
    let datasets = json["datasets"].as_array().unwrap();
    assert_eq!(datasets.len(), 2);
    let short = &datasets[0];
    for (key, expected) in [
        ("name", json!("chat")),
        ("adapters", json!(["a"])),
        ("max_seq_len", json!(32)),
        ("total_rows", json!(6)),
        ("dropped", json!(2)),
        ("fully_masked", json!(1)),
        ("truncated", json!(2)),
        ("duplicates", json!(1)),
        ("shared_with_validation", json!(1)),
        ("with_eos_target", json!(3)),
        ("extra_bos", json!(0)),
    ] {
        assert_eq!(short[key], expected, "{key}");
    }
    assert_eq!(short["rows"].as_array().unwrap().len(), 2);
    assert_eq!(short["validation"]["total_rows"], 2);
    assert_eq!(
        short["validation"]["rows"][1]["location"],
        "data/heldout.jsonl:2"
    );
    let binned = short["lengths"].as_array().unwrap().iter();
    assert_eq!(
        binned.map(|bin| bin["rows"].as_u64().unwrap()).sum::<u64>(),
        6
    );
    assert_eq!(
        (&short["length_percentiles"], &short["longest"]),
        (&json!({"p50": 15, "p90": 71, "p99": 71}), &json!(71))
    );
    assert_eq!(
        (&datasets[1]["dropped"], &datasets[1]["truncated"]),
        (&json!(0), &json!(2))
    );

    let check = here.run(&["check", "chat.yaml"]).stdout;
    let train = here.run(&["train", "chat.yaml", "--json"]);
    assert_eq!(train.code, 0, "{}", train.all());
    for dataset in datasets {
        let number = |split: &Value, key: &str| split[key].as_u64().unwrap();
        for (label, split) in [("", dataset), (", validation", &dataset["validation"])] {
            let kept = number(split, "total_rows") - number(split, "dropped");
            let line = format!(
                "at max_seq_len {}{label}: {kept} samples, {} tokens, {} targets, longest row {} tokens",
                dataset["max_seq_len"], split["tokens"], split["target_tokens"], split["longest"]
            );
            assert!(check.contains(&line), "{line} in {check}");
        }
        for warning in dataset["warnings"].as_array().unwrap() {
            let said = warning.as_str().unwrap().split("; ").next().unwrap();
            assert!(check.contains(said), "{said} in {check}");
            assert!(train.stderr.contains(said), "{said} in {}", train.stderr);
        }
    }
    // `data    chat for a: messages (messages); 4 of 6 rows, 2 dropped, 2 cut; 2 for validation`
    let line = "4 of 6 rows, 2 dropped, 2 cut; 2 for validation";
    assert!(train.stderr.contains(line), "{}", train.stderr);
}

#[test]
fn rows_are_shown_with_their_mask_and_what_becomes_of_them() {
    let here = workspace();
    let preview = |more: &[&str]| here.run(&[&["data", "preview", "one.yaml"], more].concat());
    let shown = preview(&["--rows", "5"]);
    assert_eq!(shown.code, 0, "{}", shown.all());
    insta::assert_snapshot!("rows", shown.all());
    let full = preview(&["--row", "3"]);
    assert_eq!(full.code, 0, "{}", full.all());
    insta::assert_snapshot!("row_in_full", full.stdout);
    for (name, code, line) in [
        ("no_such_row", 2, &["--row", "9"][..]),
        ("no_such_dataset", 2, &["--dataset", "talk"]),
    ] {
        let run = preview(line);
        assert_eq!(run.code, code, "{}", run.all());
        insta::assert_snapshot!(name, run.stderr);
    }
}

/// What training refuses is shown, since that is when one looks at it.
#[test]
fn data_that_training_refuses_is_shown_with_the_reason() {
    let here = workspace();
    let arguments = ["one.yaml", "--set", "adapters.a.train.max_seq_len=4"];
    let preview = here.run(&[&["data", "preview"][..], &arguments].concat());
    let train = here.run(&[&["train"][..], &arguments].concat());
    assert_eq!((preview.code, train.code), (3, 3), "{}", preview.all());
    let reason = "has a target token within max_seq_len = 4";
    assert!(train.stderr.contains(reason), "{}", train.stderr);
    assert!(preview.stderr.contains(reason), "{}", preview.stderr);
    assert!(
        preview.stdout.contains("all its targets are cut off"),
        "{}",
        preview.stdout
    );
}

#[test]
fn both_sides_of_a_pair_are_shown() {
    let here = workspace();
    let row = json!({"prompt": "Where?", "chosen": " On land.", "rejected": " In a tree."});
    here.write("data/pairs.jsonl", row.to_string());
    here.write(
        "pairs.yaml",
        "model: tiny-llama\noutput_dir: run\ndatasets: {pairs: {path: data/pairs.jsonl}}\n\
         adapters:\n  - {name: a, dataset: pairs}\n",
    );
    let shown = here.run(&["data", "preview", "pairs.yaml"]);
    let text = shown.all();
    assert_eq!(shown.code, 0, "{text}");
    for part in [
        "pairs (prompt, chosen, rejected)",
        "data/pairs.jsonl:1, training, preferred: ",
        "data/pairs.jsonl:1, training, not preferred: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = here
        .run(&["data", "preview", "pairs.yaml", "--json"])
        .json();
    let rows = json["datasets"][0]["rows"].as_array().unwrap();
    let preferred: Vec<_> = rows.iter().map(|row| &row["preferred"]).collect();
    assert_eq!(preferred, [true, false]);
}
