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

#[cfg(unix)]
#[test]
fn a_dashboard_has_a_screen_of_its_own_and_leaves_the_terminal_as_it_was() {
    const ENTER: &str = "\u{1b}[?1049h";
    const LEAVE: &str = "\u{1b}[?1049l";
    let here = workspace();
    let Some(text) = written(&here, "train short.yaml --tui") else {
        return;
    };
    let (before, rest) = text.split_once(ENTER).unwrap();
    let (drawn, after) = rest.split_once(LEAVE).unwrap();
    assert!(!before.contains("training"), "{before:?}");
    for part in ["training", "shout-r2", "tokens/s", "Ctrl-C"] {
        assert!(drawn.contains(part), "{part}: {drawn:?}");
    }
    assert!(!drawn.contains("| loss"), "lines of progress: {drawn:?}");
    // The report is printed as without it.
    assert!(after.contains("first loss"), "{after:?}");

    // Keys reach it, and the mode of the terminal is put back.
    let loraloom = assert_cmd::cargo::cargo_bin!("loraloom");
    let watch = format!(
        "stty -a > before; {} watch run; stty -a > after; cmp before after",
        loraloom.display()
    );
    let mut child = Command::new("script")
        .args(["-qefc", &watch, "/dev/null"])
        .current_dir(here.path(""))
        .env("TERM", "xterm")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    std::io::Write::write_all(&mut keys, b"jjq").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text:?}");
    assert!(text.contains(ENTER) && text.contains(LEAVE), "{text:?}");
}
