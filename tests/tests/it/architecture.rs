//! The pages that show a stranger around name what is there.

use std::{collections::BTreeSet, env, ffi::OsStr, fs, path::Path, process::Command};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("a file of the project")
}

/// The package's folder.
fn short(name: &str) -> &str {
    match name {
        "loraloom" => "cli",
        "batchlora-kernels" => "kernels",
        name => name.strip_prefix("loraloom-").unwrap_or(name),
    }
}

/// Lines `crate → crates it needs`.
fn arrows() -> BTreeSet<String> {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let name = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    let members: BTreeSet<String> = packages.iter().map(name).collect();
    let arrow = |package: &Value| {
        let needs = package["dependencies"].as_array().expect("a list");
        let needs: BTreeSet<String> = needs
            .iter()
            .filter(|dependency| dependency["kind"].is_null())
            .map(name)
            .filter(|needed| members.contains(needed))
            .collect();
        let needs: Vec<&str> = needs.iter().map(|needed| short(needed)).collect();
        (!needs.is_empty()).then(|| format!("{} → {}", short(&name(package)), needs.join(" ")))
    };
    packages.iter().filter_map(arrow).collect()
}

#[test]
fn the_map_of_crates_is_cargos() {
    let contributing = read("CONTRIBUTING.md");
    let drawn: BTreeSet<String> = contributing
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.contains(" → "))
        .map(str::to_owned)
        .collect();
    assert_eq!(drawn, arrows());
}

/// Files in backticks: of the crate that the row begins with, or named before on the same row.
#[test]
fn the_files_of_the_architecture_page_exist() {
    let page = read("docs/architecture.md");
    let mut found = 0;
    for line in page.lines().filter(|line| line.starts_with('|')) {
        let mut folder = String::new();
        for quoted in line.split('`').skip(1).step_by(2) {
            if !(Path::new(quoted).extension() == Some(OsStr::new("rs")) || quoted.ends_with('/')) {
                continue;
            }
            let path = if let Some((of_crate, _)) = quoted.split_once("/src/") {
                folder = format!("crates/{of_crate}/src");
                format!("crates/{quoted}")
            } else if folder.is_empty() {
                let name = line.trim_start_matches("| ").split([' ', ',']).next();
                let name = name.expect("a crate");
                format!("crates/{name}/src/{quoted}")
            } else {
                format!("{folder}/{quoted}")
            };
            assert!(root().join(&path).exists(), "{path} in: {line}");
            found += 1;
        }
    }
    assert!(found > 50, "{found} files");
}
