//! Pages of the documentation agree with the sources that they name.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

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

/// Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension() == Some(OsStr::new("rs")) {
            found.push(path);
        }
    }
}

/// The names that `{…}` lists after `crate::`, or the one that stands there.
fn names(after: &str) -> Vec<&str> {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let name = |text: &str| {
        text.find(|character| !is_name(character))
            .unwrap_or(text.len())
    };
    let Some(list) = after.strip_prefix('{') else {
        return vec![&after[..name(after)]];
    };
    let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, character) in list.char_indices() {
        if depth == 0 && (character == ',' || character == '}') {
            let item = list[start..at].trim();
            found.push(&item[..name(item)]);
            start = at + 1;
        }
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    found
}

/// The table in the trainer's `lib.rs` is the order of its modules.
#[test]
fn modules_of_the_trainer_use_only_those_above() {
    let lib = read("crates/trainer/src/lib.rs");
    let rows = lib.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let mut floors = BTreeMap::new();
    for (floor, row) in rows.enumerate() {
        let modules = row.split(" |").next().expect("a cell");
        for module in modules
            .split(['`', ',', ' '])
            .filter(|module| !module.is_empty())
        {
            floors.insert(module.to_owned(), floor);
        }
    }
    // What lib.rs gives out under its own name.
    let mut homes = BTreeMap::new();
    for export in lib.split("\npub use ").skip(1) {
        let (module, exported) = export.split_once("::").expect("a path");
        let exported = exported.split(';').next().expect("an end");
        for name in names(exported) {
            homes.insert(name.to_owned(), module.to_owned());
        }
    }
    let folder = root().join("crates/trainer/src");
    let (mut files, mut arrows) = (Vec::new(), BTreeSet::new());
    sources(&folder, &mut files);
    for file in files {
        let path = file.strip_prefix(&folder).expect("inside");
        let own = path.iter().next().expect("a name").to_string_lossy();
        let own = own.trim_end_matches(".rs").to_owned();
        if own == "lib" {
            continue;
        }
        let code = fs::read_to_string(&file).expect("a source");
        let code = code
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default());
        let code: Vec<&str> = code.collect();
        let code = code.join("\n");
        for after in code.split("crate::").skip(1) {
            for name in names(after).into_iter().filter(|name| !name.is_empty()) {
                let used = homes.get(name).map_or(name, String::as_str).to_owned();
                if used != own {
                    assert!(
                        floors[&used] < floors[&own],
                        "{}: {own} uses {used}",
                        path.display()
                    );
                    arrows.insert((own.clone(), used));
                }
            }
        }
    }
    assert!(arrows.len() > 30, "{} arrows", arrows.len());
    assert!(floors.values().max() < Some(&6), "six floors");
}

#[test]
fn no_two_public_types_share_a_name() {
    let mut homes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates"))
        .expect("crates")
        .flatten()
    {
        let mut files = Vec::new();
        sources(&entry.path().join("src"), &mut files);
        for file in files {
            let code = fs::read_to_string(&file).expect("a source");
            for line in code.lines() {
                let mut words = line.split_whitespace();
                let kinds = ["struct", "enum", "trait", "type", "union"];
                if words.next() != Some("pub")
                    || !words.next().is_some_and(|kind| kinds.contains(&kind))
                {
                    continue;
                }
                let name = names(words.next().unwrap_or_default())[0].to_owned();
                let own = entry.file_name().to_string_lossy().into_owned();
                homes.entry(name).or_default().insert(own);
            }
        }
    }
    assert!(homes.len() > 200, "{} types", homes.len());
    homes.retain(|_, crates| crates.len() > 1);
    assert!(homes.is_empty(), "{homes:?}");
}

/// Code spans of a table's cell.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn every_guarantee_names_tests_and_mutations_that_exist() {
    let page = read("docs/guarantees.md");
    let mutations = read("tests/mutations.sh");
    let mutations: BTreeSet<&str> = mutations
        .lines()
        .filter_map(|line| line.strip_prefix("mutation "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    let (mut found, mut guarantees) = (0, true);
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split(" |").collect();
        if ["| Guarantee", "| Complaint"].contains(&cells[0]) {
            guarantees = cells[0] == "| Guarantee";
            continue;
        }
        assert_eq!(cells.len(), 4, "{line}");
        let (tests, mutated) = if guarantees {
            (cells[1], cells[2])
        } else {
            (cells[2], "")
        };
        let tests: Vec<&str> = quoted(tests).collect();
        assert!(!tests.is_empty(), "no test: {line}");
        for test in tests {
            let (path, name) = test.split_once("::").expect("file::test");
            let function = format!("fn {name}(");
            assert!(read(path).contains(&function), "{test}");
        }
        for name in quoted(mutated) {
            assert!(mutations.contains(name), "no mutation {name}");
        }
        found += 1;
    }
    assert!(found > 30, "{found} guarantees");
}

/// Markdown files below a folder, without fixtures and build output.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if ![".git", "target", "runs", "shared"].contains(&name.to_string_lossy().as_ref()) {
                pages(&path, found);
            }
        } else if path.extension() == Some(OsStr::new("md")) {
            found.push(path);
        }
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut found = Vec::new();
    pages(root(), &mut found);
    assert!(found.len() > 30, "{} pages", found.len());
    for page in found {
        let text = fs::read_to_string(&page).expect("a page");
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#', ' ']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let path = page.parent().expect("a folder").join(target);
            assert!(path.exists(), "{} links to {target}", page.display());
        }
    }
}

/// Burn's products of `float32` round their factors to 10 bits on a GPU that can: products of a device go through
/// `frozen_linear` or `batchlora_kernels::matmul`, which do not.
#[test]
fn no_product_rounds_its_factors() {
    // References, the CPU's backend, and an operation whose every backend has another body.
    const MAY: [&str; 5] = [
        "batchlora/src/ops/flex.rs",
        "batchlora/src/ops/mod.rs",
        "batchlora/src/ops/reference.rs",
        "model/src/ops/padded_attention.rs",
        "trainer/src/start/svd.rs",
    ];
    let crates = root().join("crates");
    let mut found = Vec::new();
    for folder in fs::read_dir(&crates).expect("a folder").flatten() {
        sources(&folder.path().join("src"), &mut found);
    }
    let multiplies = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("a source");
        text.contains(".matmul(") || text.contains("float_matmul(")
    };
    let mut multiplying: Vec<String> = found
        .iter()
        .filter(|path| multiplies(path))
        .map(|path| path.strip_prefix(&crates).expect("below it"))
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    multiplying.sort();
    assert_eq!(multiplying, MAY);
}
