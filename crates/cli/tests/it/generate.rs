//! `generate`, with the adapters of a run and without.

use std::{io::Write, process::Stdio};

use crate::{support::Workspace, train};

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
