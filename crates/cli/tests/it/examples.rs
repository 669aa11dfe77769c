//! The recipes in `examples/`, by the commands in their headings.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::Workspace;

/// Begins a command in the heading of a recipe.
const COMMAND: &str = "#     loraloom ";

/// Recipes that other tests run: the gate trains the quickstart, `worker` the one of two machines.
const ELSEWHERE: [&str; 2] = ["quickstart.yaml", "two-machines.yaml"];

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A directory as the repository is for its readers.
pub(crate) fn workspace() -> Workspace {
    let here = Workspace::empty();
    for folder in ["assets/tiny-llama", "examples"] {
        copy(&root().join(folder), &here.path(folder));
    }
    here
}

/// The commands in the heading of a recipe, without `loraloom`.
pub(crate) fn commands(recipe: &str) -> Vec<&str> {
    let lines = recipe.lines();
    lines
        .filter_map(|line| line.strip_prefix(COMMAND))
        .collect()
}

/// The command, ready to be run by a shell.
pub(crate) fn shell(here: &Workspace, command: &str) -> Command {
    here.command_under(&["sh", "-c", &format!("exec \"$0\" {command}")], &[])
}

fn recipes(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    found.sort();
    found
}

#[test]
fn every_recipe_is_listed() {
    let listed = fs::read_to_string(root().join("docs/recipes.md")).unwrap();
    for recipe in recipes(&root().join("examples")) {
        let name = recipe.file_name().unwrap().display();
        let link = format!("](../examples/{name})");
        assert!(listed.contains(&link), "docs/recipes.md lacks {name}");
    }
}

#[test]
fn every_command_of_every_recipe_works() {
    let here = workspace();
    for name in ["train", "test"] {
        let row = |sum: usize| {
            let answer = format!("{sum} and 1 are {}.\\n#### {}", sum + 1, sum + 1);
            format!("{{\"question\": \"How many are {sum} and 1?\", \"answer\": \"{answer}\"}}\n")
        };
        here.write(
            &format!("gsm8k/{name}.jsonl"),
            (1..5).map(row).collect::<String>(),
        );
    }
    let mut ran = 0;
    for recipe in recipes(&here.path("examples")) {
        let text = fs::read_to_string(&recipe).unwrap();
        let lines = commands(&text);
        assert!(!lines.is_empty(), "{} has no command", recipe.display());
        if ELSEWHERE.iter().any(|name| recipe.ends_with(name)) {
            continue;
        }
        for line in lines {
            let output = shell(&here, line)
                .env("MODEL", here.path("assets/tiny-llama"))
                .env("GSM8K", here.path("gsm8k"))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "loraloom {line}: {said}");
            ran += 1;
        }
    }
    assert!(ran > 12, "{ran}");
}
