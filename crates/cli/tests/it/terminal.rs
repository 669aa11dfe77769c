//! What is written to a terminal.

use std::process::Command;

use crate::{support::Workspace, train::workspace};

/// Everything that a command writes to a terminal; nothing where none can be had.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn written(here: &Workspace, arguments: &str) -> Option<String> {
    let loraloom = assert_cmd::cargo::cargo_bin!("loraloom");
    let command = format!("{} {arguments}", loraloom.display());
    let mut script = Command::new("script");
    let script = script
        .args(["-qefc", &command, "/dev/null"])
        .current_dir(here.path(""))
        .env("TERM", "xterm");
    match script.output() {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stdout)),
        Err(_) => {
            println!("skipped: there is no `script`");
            None
        }
    }
}

#[test]
fn bars_are_drawn_once_there_is_something_to_show() {
    let here = workspace();
    let Some(text) = written(&here, "train short.yaml") else {
        return;
    };
    assert!(text.contains("reading data and weights"), "{text:?}");
    let bar = text.find('█').or_else(|| text.find('░'));
    let drawn = &text[bar.unwrap()..];
    assert!(drawn.contains("loss"), "{text:?}");
    // Before the first step, when a bar is all that there is.
    assert!(!text.contains(" 0/3"), "{text:?}");
    assert!(text.contains("answering prompts"), "{text:?}");
    // What is typed meanwhile must not begin another line.
    for frame in text.split("all       ").skip(1) {
        let frame = frame.split('\u{1b}').next().unwrap();
        assert!(frame.ends_with('\r'), "{frame:?}");
    }
}

#[test]
fn nothing_is_drawn_where_that_is_not_wanted() {
    let here = workspace();
    for (flag, lines) in [("--quiet", false), ("--no-progress", true)] {
        let arguments = format!("train short.yaml {flag} --output-dir run{flag}");
        let Some(text) = written(&here, &arguments) else {
            return;
        };
        assert!(!text.contains(['█', '░']), "{text:?}");
        assert!(!text.contains("reading data"), "{text:?}");
        assert_eq!(text.contains("shout-r2 3/3 (100%)"), lines, "{text:?}");
    }
}
