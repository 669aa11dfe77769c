//! `generate`, with the adapters of a run and without.

use std::{io::Write, process::Stdio};

use serde_json::{Value, json};

use crate::{
    support::{Run, Workspace},
    train,
};

fn trained() -> Workspace {
    let here = train::workspace();
    // Enough for the answers to change.
    let run = here.run(&[
        "train",
        "short.yaml",
        "--quiet",
        "--set",
        "defaults.train.max_steps=40",
    ]);
    assert_eq!(run.code, 0, "{}", run.all());
    here
}

#[test]
fn adapters_are_asked_by_name_or_directory_beside_the_base() {
    let here = trained();
    let generate = |more: &[&str]| {
        let run = here.run(
            &[
                &["generate", "--device", "cpu", "--max-new-tokens", "8"],
                more,
            ]
            .concat(),
        );
        assert_eq!(run.code, 0, "{}", run.all());
        run
    };
    let prompt = "List: boat, drum\nAgain:";
    let all = generate(&["--run", "run", "--compare-base", "--json", prompt]).json();
    let completions = all["completions"].as_array().unwrap();
    let name = |index: usize| completions[index]["adapter"].as_str();
    assert_eq!(
        [name(0), name(1), name(2)],
        [None, Some("number-r4"), Some("shout-r2")]
    );
    assert_eq!(completions[1]["directory"], "run/adapters/number-r4/last");
    assert_eq!(completions[2]["directory"], "run/adapters/shout-r2/best");
    let text = |index: usize| completions[index]["text"].as_str().unwrap().to_owned();
    assert_ne!(text(0), text(2), "the adapter changes nothing");

    // What is printed ends with one line end, whether or not the text does.
    let line = |index| text(index).trim_end_matches('\n').to_owned() + "\n";

    // The same alone as in the batch, by name and by directory.
    let base = generate(&["--model", "tiny-llama", prompt]);
    assert_eq!(base.stdout, line(0));
    let named = generate(&["--run", "run", "--adapter", "shout-r2", prompt]);
    assert_eq!(named.stdout, line(2));
    let directory = "run/adapters/shout-r2/best";
    let direct = generate(&["--model", "tiny-llama", "--adapter", directory, prompt]);
    assert_eq!(direct.stdout, named.stdout);

    let both = generate(&[
        "--run",
        "run",
        "--adapter",
        "shout-r2, number-r4@last",
        prompt,
    ]);
    let expected = format!(
        "== shout-r2 ==\n{}\n== number-r4@last ==\n{}",
        line(2),
        line(1)
    );
    assert_eq!(both.stdout, expected);

    let mut command = here.command(&["generate", "--run", "run", "--adapter", "shout-r2"]);
    command.args(["--device", "cpu", "--max-new-tokens", "8", "-"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(format!("{prompt}\n").as_bytes())
        .unwrap();
    let piped = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), named.stdout);
}

#[test]
fn a_chat_is_a_prompt_in_the_template() {
    let here = Workspace::new();
    let ask = |more: &[&str]| {
        let line = [
            "generate",
            "--model",
            "tiny-llama",
            "--device",
            "cpu",
            "--max-new-tokens",
            "6",
        ];
        here.run(&[&line[..], more, &["Where does the seal live?"]].concat())
    };
    let (raw, chat) = (ask(&[]), ask(&["--chat"]));
    assert_eq!((raw.code, chat.code), (0, 0));
    assert_ne!(raw.stdout, chat.stdout);
    let draw = |seed| ask(&["--temperature", "2", "--seed", seed]).stdout;
    assert_eq!(draw("1"), draw("1"));
    assert!(["2", "3", "4"].iter().any(|seed| draw(seed) != draw("1")));
}

/// Prompts of several lengths, so that some are answered together and others are not.
#[test]
fn every_prompt_of_a_file_is_answered_as_it_is_alone() {
    let here = trained();
    let prompts = [
        "List: boat, drum\nAgain:",
        "List: drum, boat\nAgain:",
        "Number the list: goat, hen, bee",
        "Q",
    ];
    let rows = prompts.map(|prompt| json!({"prompt": prompt, "completion": "-"}).to_string());
    here.write("prompts.jsonl", rows.join("\n"));
    let ask = [
        "generate",
        "--run",
        "run",
        "--compare-base",
        "--device",
        "cpu",
    ];
    let ask = [&ask[..], &["--max-new-tokens", "6"]].concat();
    let ok = |more: &[&str]| {
        let run = here.run(&[&ask[..], more].concat());
        assert_eq!(run.code, 0, "{more:?}: {}", run.all());
        run
    };
    let lines = |run: &Run| -> Vec<Value> {
        let lines = run.stdout.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let mut expected = Vec::new();
    for (number, prompt) in (1..).zip(prompts) {
        let alone = ok(&["--json", prompt]).json();
        for completion in alone["completions"].as_array().unwrap() {
            let mut line = completion.clone();
            line["location"] = format!("prompts.jsonl:{number}").into();
            line["prompt"] = prompt.into();
            expected.push(line);
        }
    }
    for batch_size in [&[][..], &["--batch-size", "1"], &["--batch-size", "4"]] {
        let run = ok(&[&["--json", "--prompts", "prompts.jsonl"], batch_size].concat());
        assert_eq!(lines(&run), expected, "{batch_size:?}");
    }
    let text = ok(&["--prompts", "prompts.jsonl"]).stdout;
    let shown = "prompts.jsonl:1\n  List: boat, drum\n  Again:\n\n== base model ==\n";
    assert!(text.starts_with(shown), "{text}");
    assert_eq!(text.matches("\n\nprompts.jsonl:").count(), 3, "{text}");

    // The last answer of a chat is not a part of the prompt.
    let chat = "{\"role\": \"user\", \"content\": \"Where does the seal live?\"}";
    let answer = "{\"role\": \"assistant\", \"content\": \"In the sea.\"}";
    let rows = format!("{{\"messages\": [{chat}]}}\n{{\"messages\": [{chat}, {answer}]}}\n");
    here.write("chats.jsonl", rows);
    here.write("chats.txt", "\nWhere does the seal live?\n");
    let texts =
        |run: &Run| -> Vec<Value> { lines(run).iter().map(|line| line["text"].clone()).collect() };
    let plain = lines(&ok(&["--json", "--prompts", "chats.txt", "--chat"]));
    let alone = ok(&["--json", "--chat", "Where does the seal live?"]).json();
    assert_eq!(plain[0]["location"], "chats.txt:2");
    assert_eq!(plain[2]["text"], alone["completions"][2]["text"]);
    let chats = texts(&ok(&["--json", "--prompts", "chats.jsonl"]));
    let plain: Vec<Value> = plain.iter().map(|line| line["text"].clone()).collect();
    assert_eq!(chats, [plain.clone(), plain].concat());
}

#[test]
fn prompts_beside_one_that_is_too_long_are_answered() {
    let here = Workspace::new();
    let long = ["word"; 600].join(" ");
    here.write("some.txt", format!("one\n{long}\ntwo \t\r\n"));
    let line = ["generate", "--model", "tiny-llama", "--device", "cpu"];
    let more = ["--max-new-tokens", "2", "--json", "--prompts", "some.txt"];
    let run = here.run(&[&line[..], &more].concat());
    assert_eq!(run.code, 0, "{}", run.all());
    let prompts = run.stdout.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["prompt"].as_str().unwrap().to_owned()
    });
    // Of a line only its end is dropped.
    assert_eq!(prompts.collect::<Vec<_>>(), ["one", "two \t"]);
    let said = "1 of 3 prompts fill the model's context of 512 tokens and are not answered, the first at \
                some.txt:2, which has 603";
    assert!(run.stderr.contains(said), "{}", run.stderr);
}

#[test]
fn files_without_prompts_are_refused() {
    let here = Workspace::new();
    let long = ["word"; 600].join(" ");
    here.write("long.txt", format!("\n{long}\n"));
    here.write(
        "columns.jsonl",
        "{\"prompt\": \"a\"}\n{\"question\": \"a\"}\n",
    );
    here.write("number.jsonl", "{\"prompt\": 5}\n");
    here.write("nothing.jsonl", "{\"messages\": []}\n");
    here.write(
        "answers.json",
        "[{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}]",
    );
    here.write("type.csv", "prompt\n");
    here.write("prompts", "a\n");
    let mut all = String::new();
    for (file, code, more) in [
        ("long.txt", 3, &[][..]),
        ("columns.jsonl", 3, &[]),
        ("number.jsonl", 3, &[]),
        ("nothing.jsonl", 3, &[]),
        ("answers.json", 3, &[]),
        ("type.csv", 3, &[]),
        ("prompts", 3, &[]),
        ("nowhere.txt", 3, &[]),
        ("long.txt", 2, &["Hello"]),
    ] {
        let line = ["generate", "--model", "tiny-llama", "--device", "cpu"];
        let line = [&line[..], &["--prompts", file], more].concat();
        let run = here.run(&line);
        assert_eq!(run.code, code, "{}", run.all());
        all += &run.after(&line);
    }
    insta::assert_snapshot!(all);
}

#[test]
fn adapters_that_are_not_there_are_named() {
    let here = train::workspace();
    let run = here.run(&[
        "train",
        "short.yaml",
        "--quiet",
        "--set",
        "defaults.train.max_steps=1",
    ]);
    assert_eq!(run.code, 0);
    for (code, name, line) in [
        (
            2,
            "unknown_in_a_run",
            &["--run", "run", "--adapter", "nobody"][..],
        ),
        (
            2,
            "never_best",
            &["--run", "run", "--adapter", "number-r4@best"],
        ),
        (
            3,
            "no_directory",
            &["--model", "tiny-llama", "--adapter", "nowhere"],
        ),
    ] {
        let run = here.run(&[&["generate", "--device", "cpu", "x"], line].concat());
        assert_eq!(run.code, code, "{}", run.all());
        insta::assert_snapshot!(name, run.stderr);
    }
}
