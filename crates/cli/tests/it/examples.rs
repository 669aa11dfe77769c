//! The recipes in `examples/`, by the commands in their headings.

use std::{fs, path::Path};

use crate::support::Workspace;

/// Begins a command in the heading of a recipe.
const COMMAND: &str = "#     loraloom ";

fn copy(from: &Path, to: &Path) {
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

#[test]
fn every_command_of_every_recipe_works() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let here = Workspace::empty();
    for folder in ["assets/tiny-llama", "examples"] {
        copy(&root.join(folder), &here.path(folder));
    }
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
    let mut recipes: Vec<_> = fs::read_dir(here.path("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    recipes.sort();
    let mut commands = 0;
    for recipe in recipes {
        let text = fs::read_to_string(&recipe).unwrap();
        let lines: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix(COMMAND))
            .collect();
        assert!(!lines.is_empty(), "{} has no command", recipe.display());
        // The gate trains the quickstart.
        if recipe.ends_with("quickstart.yaml") {
            continue;
        }
        for line in lines {
            let script = format!("loraloom() {{ \"$0\" \"$@\"; }}; loraloom {line}");
            let mut command = here.command_under(&["sh", "-c", &script], &[]);
            let output = command
                .env("MODEL", here.path("assets/tiny-llama"))
                .env("GSM8K", here.path("gsm8k"))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "loraloom {line}: {said}");
            commands += 1;
        }
    }
    assert!(commands > 12, "{commands}");
}
