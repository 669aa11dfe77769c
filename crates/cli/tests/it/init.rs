//! `init`.

use std::fs;

use crate::support::Workspace;

#[test]
fn it_writes_what_check_accepts_from_anywhere() {
    let here = Workspace::empty();
    let run = here.run(&["init", "first/try"]);
    insta::assert_snapshot!(run.all());
    assert_eq!(here.run(&["check", "first/try/loraloom.yaml"]).code, 0);
    let config = here.path("first/try/loraloom.yaml");
    assert_eq!(
        Workspace::empty()
            .run(&["check", config.to_str().unwrap()])
            .code,
        0
    );
}

#[test]
fn what_it_writes_trains() {
    let here = Workspace::new();
    let few = [
        "--set",
        "defaults.train.max_steps=2",
        "--device",
        "cpu",
        "--quiet",
    ];
    let run = here.run(&[&["train", "loraloom.yaml"], &few[..]].concat());
    assert_eq!(run.code, 0, "{}", run.all());
    assert_eq!(run.stdout.matches(" done ").count(), 6, "{}", run.stdout);
}

#[test]
fn nothing_is_overwritten_without_force() {
    let here = Workspace::new();
    here.write("data/shout.jsonl", "mine");
    fs::remove_file(here.path("loraloom.yaml")).unwrap();
    let run = here.run(&["init"]);
    assert_eq!(run.code, 2);
    insta::assert_snapshot!(run.stderr);
    assert!(!here.path("loraloom.yaml").exists());
    assert_eq!(
        fs::read_to_string(here.path("data/shout.jsonl")).unwrap(),
        "mine"
    );

    assert_eq!(here.run(&["init", "--force"]).code, 0);
    assert_ne!(
        fs::read_to_string(here.path("data/shout.jsonl")).unwrap(),
        "mine"
    );
}

#[test]
fn a_place_that_cannot_be_written_is_said() {
    let here = Workspace::empty();
    here.write("file", "");
    let run = here.run(&["init", "file/below"]);
    assert_eq!(run.code, 2);
    assert!(
        run.stderr.starts_with("error: cannot write `file/below"),
        "{}",
        run.stderr
    );
}
