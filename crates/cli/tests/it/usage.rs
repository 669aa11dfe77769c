//! Help, mistakes on the command line, and what this version does not serve.

use std::{fs, io};

use crate::support::Workspace;

#[test]
fn help_is_the_documentation() {
    let here = Workspace::empty();
    for (name, arguments) in [
        ("help", &["--help"][..]),
        ("help_short", &["-h"]),
        ("help_plan", &["plan", "--help"]),
        ("help_train", &["train", "--help"]),
        ("help_generate", &["generate", "--help"]),
        ("help_bench", &["bench", "--help"]),
    ] {
        let run = here.run(arguments);
        assert_eq!(run.code, 0);
        insta::assert_snapshot!(name, run.all());
    }
    for (command, flag) in [
        (&["help"][..], &["--help"][..]),
        (&["help", "train"], &["train", "--help"]),
    ] {
        assert_eq!(here.run(command).all(), here.run(flag).all(), "{command:?}");
    }
}

#[test]
fn mistakes_exit_with_2() {
    let here = Workspace::empty();
    let mut all = String::new();
    for arguments in [
        &["trian", "x.yaml"][..],
        &["train"],
        &["train", "x.yaml", "--devise", "cpu"],
        &["train", "x.yaml", "--device", "gpu"],
        &["generate", "hello"],
        &["generate", "--model", "m", "--top-k", "5", "hello"],
        &["generate", "--model", "m", "--temperature", "-1", "hello"],
        &[
            "generate",
            "--model",
            "m",
            "--temperature",
            "1",
            "--top-p",
            "1.5",
            "hello",
        ],
        &["generate", "--model", "m", "--max-new-tokens", "0", "hello"],
        &[
            "generate",
            "--model",
            "m",
            "--max-new-tokens",
            "-1",
            "hello",
        ],
        &["generate", "--model", "m", "--seed", "-1", "hello"],
        &["generate", "--run", "nowhere", "hello"],
        &["plan", "x.yaml", "--tflops", "-1"],
        &["plan", "x.yaml", "--link-gbits", "10"],
        &["bench", "--rank", "-8"],
        &["simulate", "trace.csv", "--start", "1.5"],
        &["submit", "run", "x.yaml", "--set", "scheduler.policy=fair"],
        &["submit", "run", "x.yaml", "--set", "output_dir=other"],
        &["serve", "run", "--set", "output_dir=other"],
    ] {
        let run = here.run(arguments);
        assert_eq!(run.code, 2, "{arguments:?}: {}", run.stderr);
        assert_eq!(run.stdout, "");
        all += &run.after(arguments);
    }
    insta::assert_snapshot!(all);
    assert_eq!(here.run(&[]).code, 2);
}

#[test]
fn completions_know_the_commands_that_are_served() {
    let here = Workspace::empty();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let run = here.run(&["completions", shell]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(run.stdout.contains("compare-base"), "{shell}");
        assert!(run.stdout.contains("simulate"), "{shell}");
        assert!(run.stdout.contains("verify"), "{shell}");
    }
}

#[test]
fn every_command_has_a_man_page() {
    let here = Workspace::empty();
    let run = here.run(&["man", "share/man1"]);
    assert_eq!((run.code, run.stdout), (0, String::new()), "{}", run.stderr);
    let reference = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let reference = fs::read_to_string(reference).unwrap();
    let headings = reference
        .lines()
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(" loraloom "));
    let names = headings.map(|command| format!("loraloom-{}.1", command.replace(' ', "-")));
    let mut expected: Vec<String> = names.chain(["loraloom.1".to_owned()]).collect();
    let pages = fs::read_dir(here.path("share/man1")).unwrap();
    let mut found: Vec<String> = pages
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    let page = fs::read_to_string(here.path("share/man1/loraloom-train.1")).unwrap();
    for part in [
        r"\-\-resume",
        concat!("loraloom ", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(here.run(&["man", "share/man1/loraloom.1/a"]).code, 2);
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let here = Workspace::empty();
    for arguments in [
        &["completions", "zsh"][..],
        &["config", "schema"],
        &["--help"],
    ] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = here.command(arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    }
}
