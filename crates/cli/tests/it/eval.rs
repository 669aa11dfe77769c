//! `eval`: its figures beside those of transformers, of training and of Python.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use crate::{support::Workspace, train};

fn fixture(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/eval");
    root.join(name).to_str().unwrap().to_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// Losses are the same, but for rounding in float32.
fn close(found: &Value, expected: f64) {
    let off = (number(found) / expected - 1.0).abs();
    assert!(off < 1e-6, "{found} instead of {expected}");
}

/// As `tests/fixtures/make_eval.py` froze them.
#[test]
fn figures_and_answers_are_those_of_transformers_whatever_the_batches() {
    let here = Workspace::new();
    let expected = fs::read_to_string(fixture("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let adapters = ["shout", "pirate"].map(|name| fixture(&format!("adapters/{name}")));
    let limit = expected["max_new_tokens"].to_string();
    for (name, frozen) in expected["datasets"].as_object().unwrap() {
        let (dataset, adapters) = (fixture(&format!("{name}.jsonl")), adapters.join(","));
        let mut line = vec!["eval", "--model", "tiny-llama", "--device", "cpu", "--json"];
        line.extend([
            "--adapter",
            &adapters,
            "--compare-base",
            "--dataset",
            &dataset,
        ]);
        line.extend(["--exact-match", frozen["exact_match"].as_str().unwrap()]);
        line.extend(["--max-new-tokens", &limit, "--answers", "answers.jsonl"]);
        for ignored in frozen["ignore"].as_array().unwrap() {
            line.extend(["--ignore", ignored.as_str().unwrap()]);
        }
        let eval = |batch_size| {
            let run = here.run(&[&line[..], &["--batch-size", batch_size]].concat());
            assert_eq!(run.code, 0, "{}", run.all());
            run
        };
        let run = eval("16");
        let answers = fs::read_to_string(here.path("answers.jsonl")).unwrap();
        let answers: Vec<Value> = answers
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let json = run.json();
        let results = json["results"].as_array().unwrap();
        for (who, result) in ["base", "shout", "pirate"].iter().zip(results) {
            let wanted = &frozen["results"][who];
            let directory = (*who != "base").then(|| fixture(&format!("adapters/{who}")));
            assert_eq!(result["adapter"], json!(directory));
            for key in ["target_tokens", "rows", "accuracy", "exact_match"] {
                assert_eq!(result[key], wanted[key], "{name}, {who}: {key}");
            }
            let theirs = number(&wanted["loss"]);
            close(&result["loss"], theirs);
            let perplexity = number(&result["perplexity"]);
            assert!(
                (perplexity / theirs.exp() - 1.0).abs() < 2e-5,
                "{perplexity}"
            );
            let own = answers
                .iter()
                .filter(|answer| answer["adapter"] == json!(directory));
            let texts: Vec<&Value> = own.map(|answer| &answer["text"]).collect();
            let wanted: Vec<&Value> = wanted["texts"].as_array().unwrap().iter().collect();
            assert_eq!(texts, wanted, "{name}, {who}");
        }
        for batch_size in ["1", "2", "7", "1000"] {
            let other = eval(batch_size).json();
            for (left, right) in results.iter().zip(other["results"].as_array().unwrap()) {
                close(&left["loss"], number(&right["loss"]));
                for key in ["adapter", "accuracy", "target_tokens", "exact_match"] {
                    assert_eq!(left[key], right[key], "{name} in batches of {batch_size}");
                }
            }
        }
    }
}

/// The last evaluation of every adapter in the events of a run.
fn evaluated(here: &Workspace, adapter: &str) -> f64 {
    let events = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    let mut events = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_adapter = |event: &Value| event["event"] == "eval" && event["adapter"] == adapter;
    number(&events.rfind(of_adapter).unwrap()["loss"])
}

#[test]
fn a_run_is_evaluated_as_it_was_while_it_trained() {
    let here = train::workspace();
    let lengths = ["--set", "adapters.shout-r2.train.max_seq_len=14"];
    let steps = ["--set", "defaults.train.max_steps=6", "--quiet"];
    let run = here.run(&[&["train", "short.yaml"][..], &lengths, &steps].concat());
    assert_eq!(run.code, 0, "{}", run.all());
    let last = evaluated(&here, "shout-r2");
    let eval = |more: &[&str]| {
        let line = [
            "eval",
            "--run",
            "run",
            "--device",
            "cpu",
            "--dataset",
            "shout",
        ];
        let run = here.run(&[&line[..], more].concat());
        assert_eq!(run.code, 0, "{}", run.all());
        run
    };
    let json = eval(&["--adapter", "shout-r2@last", "--json"]).json();
    close(&json["results"][0]["loss"], last);
    assert_eq!(json["dataset"]["split"], "validation");
    assert_eq!(json["dataset"]["max_seq_len"], 14);
    assert!(number(&json["dataset"]["truncated"]) > 0.0, "{json}");

    // Side by side with others the same, and fewer rows or longer ones something else.
    let all = eval(&["--compare-base", "--json", "--batch-size", "3"]).json();
    let results = all["results"].as_array().unwrap();
    let names: Vec<&Value> = results.iter().map(|result| &result["adapter"]).collect();
    assert_eq!(
        names,
        [&Value::Null, &json!("number-r4"), &json!("shout-r2")]
    );
    let best = eval(&["--adapter", "shout-r2@best", "--json"]).json();
    close(&results[2]["loss"], number(&best["results"][0]["loss"]));
    assert!(number(&results[0]["loss"]) > number(&results[2]["loss"]));
    let few = eval(&["--adapter", "shout-r2@last", "--limit", "2", "--json"]).json();
    assert_eq!(
        (&few["results"][0]["rows"], &few["dataset"]["total_rows"]),
        (&json!(2), &json!(2))
    );
    let whole = eval(&[
        "--adapter",
        "shout-r2@last",
        "--max-seq-len",
        "64",
        "--json",
    ])
    .json();
    assert_eq!(whole["dataset"]["truncated"], 0);
    assert!(
        number(&whole["results"][0]["target_tokens"])
            > number(&json["results"][0]["target_tokens"])
    );
    let prompts = eval(&["--adapter", "shout-r2@last", "--train-on-prompt", "--json"]).json();
    assert!(
        number(&prompts["results"][0]["target_tokens"])
            > number(&json["results"][0]["target_tokens"])
    );

    // In text the best is first, and rows that are cut are said.
    let table = eval(&["--compare-base", "--quiet"]);
    assert_eq!(table.stderr, "");
    assert!(
        table.stdout.contains("are cut to 14 tokens"),
        "{}",
        table.stdout
    );
    let order: Vec<&str> = table
        .stdout
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let place = |name: &str| order.iter().position(|word| *word == name).unwrap();
    assert!(place("shout-r2") < place("base"), "{}", table.stdout);
}

#[test]
fn rows_that_do_not_count_are_said() {
    let here = Workspace::new();
    let long = ["word"; 40].join(" ");
    let endless = ["word"; 600].join(" ");
    let rows = [
        ("one", "#### 1"),
        (&long, "#### 2"),
        ("three", "3"),
        ("four", &format!("{long} #### 4")),
        (&endless, "#### 5"),
    ];
    let rows = rows.map(|(q, a)| json!({"q": q, "a": a}).to_string() + "\n");
    here.write("rows.jsonl", rows.concat());
    let eval = |more: &[&str]| {
        let line = [
            "eval",
            "--model",
            "tiny-llama",
            "--device",
            "cpu",
            "--max-seq-len",
            "30",
        ];
        here.run(&[&line[..], &["--dataset"], more].concat())
    };
    let columns = ["rows.jsonl", "--columns", "prompt=q,completion=a"];
    let run = eval(
        &[
            &columns[..],
            &["--exact-match", "#### (.*)", "--max-new-tokens", "2"],
        ]
        .concat(),
    );
    assert_eq!(run.code, 0, "{}", run.all());
    insta::assert_snapshot!("rows_left_out", run.all());
    let json = eval(&[&columns[..], &["--exact-match", "#### (.*)", "--json"]].concat());
    assert!(
        json.stderr.contains("2 of 5 rows are dropped"),
        "{}",
        json.stderr
    );
    let json = json.json();
    assert_eq!(json["dataset"]["dropped"], 2);
    assert_eq!(json["results"][0]["rows"], 3);
    // Prompts and references are whole, as far as the context goes.
    assert_eq!(json["results"][0]["exact_match_rows"], 3);

    here.write(
        "long.jsonl",
        format!("{{\"q\": \"{long}\", \"a\": \"2\"}}\n"),
    );
    here.write("text.jsonl", "{\"text\": \"a b\"}\n");
    here.write("odd.jsonl", "{\"odd\": \"a b\"}\n");
    let none = &["--exact-match", "(\\d+)"];
    for (name, code, line) in [
        ("no_prompts", 2, [&["text.jsonl"], &none[..]].concat()),
        (
            "no_reference_matches",
            2,
            [&columns[..], &["--exact-match", "five"]].concat(),
        ),
        (
            "columns_of_another_format",
            3,
            ["text.jsonl", "--columns", "prompt=a,completion=b"].to_vec(),
        ),
        (
            "template_without_text",
            3,
            ["text.jsonl", "--template", ""].to_vec(),
        ),
        ("unknown_columns", 3, vec!["odd.jsonl"]),
        ("no_file", 3, vec!["nowhere.jsonl"]),
        ("no_targets", 3, [&["long.jsonl"], &columns[1..]].concat()),
        (
            "no_expression",
            2,
            ["rows.jsonl", "--exact-match", "("].to_vec(),
        ),
        (
            "ignored_for_nothing",
            2,
            ["rows.jsonl", "--ignore", ","].to_vec(),
        ),
    ] {
        let run = eval(&line);
        assert_eq!(run.code, code, "{}", run.all());
        insta::assert_snapshot!(name, run.stderr);
    }
}

#[test]
fn a_dataset_that_a_run_has_not_is_named() {
    let here = train::workspace();
    let steps = ["--set", "defaults.train.max_steps=1", "--quiet"];
    let template = "datasets.number.template='{{ instruction }}{{ output }}'";
    let train = [&["train", "short.yaml"][..], &steps, &["--set", template]].concat();
    let run = here.run(&train);
    assert_eq!(run.code, 0, "{}", run.all());
    // Files are rendered as the options say, whatever the run has.
    for (file, template, said) in [
        (
            "data/number.jsonl",
            None,
            "number-r4 was trained with the template of dataset `number`; this evaluates without one",
        ),
        (
            "data/shout.jsonl",
            Some("{{ prompt }}"),
            "shout-r2 was trained without a template; this evaluates with one",
        ),
    ] {
        let adapter = said.split(' ').next().unwrap();
        let line = [
            "eval",
            "--run",
            "run",
            "--adapter",
            adapter,
            "--dataset",
            file,
        ];
        let template = template.map(|template| ["--template", template]);
        let run = here.run(&[&line[..], template.as_ref().map_or(&[], |two| &two[..])].concat());
        assert!(run.code == 0 && run.stderr.contains(said), "{}", run.all());
    }
    for (name, code, line) in [
        ("unknown_dataset", 3, &["--dataset", "shut"][..]),
        (
            "columns_of_the_runs_own",
            2,
            &["--dataset", "shout", "--columns", "text=prompt"],
        ),
    ] {
        let run = here.run(&[&["eval", "--run", "run", "--device", "cpu"], line].concat());
        assert_eq!(run.code, code, "{}", run.all());
        insta::assert_snapshot!(name, run.stderr);
    }
    // Answers never replace what they are made from.
    for (answers, message) in [
        (
            "data/shout.jsonl",
            "the answers and the dataset are the same file",
        ),
        (
            "run/events.jsonl",
            "`run/events.jsonl` is a file of the run",
        ),
    ] {
        let before = fs::read(here.path(answers)).unwrap();
        let eval = ["eval", "--run", "run", "--dataset", "data/shout.jsonl"];
        let ask = ["--exact-match", "(.*)!", "--answers", answers];
        let run = here.run(&[&eval[..], &ask].concat());
        assert_eq!(run.code, 2, "{}", run.all());
        assert!(run.stderr.contains(message), "{}", run.stderr);
        assert!(fs::read(here.path(answers)).unwrap() == before, "{answers}");
    }
}

/// The events of a run, whose figures are those of TRL.
#[test]
fn preferences_are_judged_as_in_training_beside_the_base() {
    let here = Workspace::new();
    let rows = |of: &dyn Fn(usize) -> Value| -> String {
        (0..6).map(|index| of(index).to_string() + "\n").collect()
    };
    let animal = |index: usize| ["cat", "dog", "owl", "bear", "fox", "hen"][index];
    let pair = |index| {
        json!({"prompt": "Where is it? ", "chosen": format!("The {} is on land.", animal(index)),
            "rejected": format!("It is the {}.", animal(index))})
    };
    let rated = |index| {
        json!({"prompt": "Where is it? ", "completion": format!("The {} is here.", animal(index)),
            "label": index % 3 > 0})
    };
    here.write("pairs.jsonl", rows(&pair));
    here.write("rated.jsonl", rows(&rated));
    here.write("held-pairs.jsonl", rows(&|index| pair(5 - index)));
    here.write("held-rated.jsonl", rows(&|index| rated(5 - index)));
    here.write(
        "run.yaml",
        "model: tiny-llama\noutput_dir: run\ndevice: cpu\n\
         datasets:\n  pairs: {path: pairs.jsonl, validation: held-pairs.jsonl}\n  \
         rated: {path: rated.jsonl, validation: held-rated.jsonl}\n\
         defaults: {train: {batch_size: 3, max_steps: 4, learning_rate: 0.01, max_seq_len: 32}}\n\
         adapters:\n  - {name: dpo, dataset: pairs, objective: {type: dpo, beta: 0.5}}\n  \
         - {name: kto, dataset: rated, objective: {type: kto, beta: 0.5}}\n",
    );
    let run = here.run(&["train", "run.yaml", "--quiet"]);
    assert_eq!(run.code, 0, "{}", run.all());
    let events = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    let events: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let eval = |more: &[&str]| {
        let run = here.run(&[&["eval", "--run", "run", "--device", "cpu"], more].concat());
        assert_eq!(run.code, 0, "{}", run.all());
        run
    };
    for (adapter, dataset) in [("dpo", "pairs"), ("kto", "rated")] {
        let is_eval = |event: &&Value| event["event"] == "eval" && event["adapter"] == adapter;
        let event = events.iter().rfind(is_eval).unwrap();
        let last = format!("{adapter}@last");
        let line = ["--adapter", &last, "--dataset", dataset, "--json"];
        let json = eval(&line).json();
        let [result] = &json["results"].as_array().unwrap()[..] else {
            panic!("{json}");
        };
        for key in ["logps/chosen", "logps/rejected"] {
            close(&result[key], number(&event[key]));
        }
        let margin = 0.5 * number(&result["rewards/margins"]);
        let theirs = number(&event["rewards/margins"]);
        assert!(
            (margin - theirs).abs() < 1e-5,
            "{margin} instead of {theirs}"
        );
        assert!(theirs > 0.01, "nothing learned: {theirs}");
        // Before it has learnt anything it is its reference.
        let is_first = |event: &&Value| event["event"] == "step" && event["adapter"] == adapter;
        let first = events.iter().find(is_first).unwrap();
        let reward = number(&first["rewards/chosen"]);
        assert!(reward.abs() < 1e-5, "{first}");
        if adapter == "dpo" {
            assert_eq!(result["rewards/accuracies"], event["rewards/accuracies"]);
        } else {
            assert_eq!(result["rewards/accuracies"], Value::Null);
        }
        // Of chosen completions alone.
        assert_eq!(json["dataset"]["total_rows"], 6);
        assert_eq!(result["rows"], 6);
        let chosen = if adapter == "dpo" { 6.0 } else { 4.0 };
        let loss = number(&result["loss"]) * number(&result["target_tokens"]) / chosen;
        close(&result["logps/chosen"], -loss);

        let table = eval(&[&line[..4], &["--compare-base"]].concat()).stdout;
        let row = table
            .lines()
            .rfind(|line| line.starts_with(adapter))
            .unwrap();
        for key in ["logps/chosen", "logps/rejected", "rewards/margins"] {
            let shown = format!("  {:.4}", number(&result[key]));
            assert!(table.contains(key) && row.contains(&shown), "{table}");
        }
        let base = eval(&[&line[..], &["--compare-base"]].concat()).json();
        assert_eq!(base["results"][1], *result);
        assert_eq!(base["results"][0]["rewards/margins"], Value::Null);
    }
}
