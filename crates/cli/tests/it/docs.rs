//! The commands of the pages for users, as they stand there.
//!
//! The blocks of a page that begin with ` ```console ` are run in order, in a directory with `examples/`, `assets/`
//! and the files of [`PLACEHOLDERS`]. What a block shows must have been printed, apart from numbers; `…` stands for
//! lines that it leaves out. A comment directly above a block says what is special about it:
//!
//! - `<!-- file: NAME -->`: the block is the contents of that file;
//! - `<!-- exits with CODE -->`: its commands do;
//! - `<!-- in the background -->`: its only command runs to the end of the page;
//! - `<!-- not run: REASON -->`.

use std::{
    fs,
    os::unix::fs::symlink,
    process::{Child, Command, Stdio},
};

use crate::{
    examples::{copy, root, workspace},
    server::until,
    simulate::trace,
    support::Workspace,
};

/// Names that stand for files of the reader, and the files that the test puts there.
const PLACEHOLDERS: [(&str, &str); 3] = [
    ("models/Llama-3.2-1B", "assets/tiny-llama"),
    ("data/billing.jsonl", "examples/data/shout.jsonl"),
    ("data/technical.jsonl", "examples/data/pirate.jsonl"),
];

/// A fenced block, and the comment directly above it.
struct Block<'a> {
    line: usize,
    mark: &'a str,
    language: &'a str,
    lines: Vec<&'a str>,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let (mut found, mut above) = (Vec::new(), "");
    let mut lines = (1..).zip(page.lines());
    while let Some((line, text)) = lines.next() {
        if let Some(language) = text.strip_prefix("```") {
            let inside = lines.by_ref().map(|(_, text)| text);
            let comment = above.strip_prefix("<!-- ");
            found.push(Block {
                line,
                mark: comment
                    .and_then(|text| text.strip_suffix(" -->"))
                    .unwrap_or_default(),
                language,
                lines: inside.take_while(|text| *text != "```").collect(),
            });
        }
        above = text;
    }
    found
}

/// Commands after `$ `, each with the lines that it is said to print.
fn commands<'a>(lines: &[&'a str]) -> Vec<(String, Vec<&'a str>)> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    for line in lines {
        if let Some(command) = line.strip_prefix("$ ") {
            found.push((command.to_owned(), Vec::new()));
            continue;
        }
        let (command, shown) = found.last_mut().expect("a command before its output");
        if command.ends_with('\\') && shown.is_empty() {
            *command = format!("{command}\n{line}");
        } else {
            shown.push(line);
        }
    }
    found
}

/// The words of a line: numbers differ between machines, and the spaces between columns with them.
fn words(line: &str) -> String {
    let ends = |character: char| !(character.is_alphanumeric() || "+-.".contains(character));
    line.split(ends)
        .filter(|word| word.parse::<f64>().is_err())
        .flat_map(str::chars)
        .filter(|character| !character.is_ascii_digit() && *character != '.')
        .collect()
}

/// A directory as the reader of a page has it, and `loraloom` on the path.
struct Reader(Workspace);

impl Reader {
    fn new() -> Self {
        let here = workspace();
        for (name, source) in PLACEHOLDERS {
            let (to, source) = (here.path(name), root().join(source));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            if source.is_dir() {
                copy(&source, &to);
            } else {
                fs::copy(source, to).unwrap();
            }
        }
        here.write("jobs.csv", trace(60));
        fs::create_dir(here.path("bin")).unwrap();
        symlink(here.command(&[]).get_program(), here.path("bin/loraloom")).unwrap();
        Self(here)
    }

    fn shell(&self, script: &str) -> Command {
        let mut command = self.0.command_under(&["bash", "-c", script], &[]);
        let path = format!(
            "{}:{}",
            self.0.path("bin").display(),
            std::env::var("PATH").unwrap()
        );
        command.env("PATH", path).env_remove("COLUMNS");
        command
    }

    /// Runs a command; `place` is where it stands.
    fn run(&self, place: &str, (script, shown): &(String, Vec<&str>), expected: i32) {
        let run = self.0.finish(&mut self.shell(script));
        assert_eq!(run.code, expected, "{place}: {script}\n{}", run.all());
        let printed: Vec<String> = run
            .stdout
            .lines()
            .chain(run.stderr.lines())
            .map(words)
            .collect();
        for line in shown.iter().filter(|line| **line != "…") {
            assert!(
                printed.contains(&words(line)),
                "{place}: `{line}` is not of {script}\n{}",
                run.all()
            );
        }
    }

    /// Starts `loraloom serve RUN …`, and waits until it serves.
    fn start(&self, script: &str) -> Background {
        let run = script.split(' ').nth(2).unwrap();
        let mut command = self.shell(&format!("exec {script}"));
        command.stderr(Stdio::null());
        let child = Background(command.spawn().unwrap());
        until("a server", || {
            let status = self.0.run(&["status", run, "--json"]);
            status.code == 0 && status.json()["served"] == true
        });
        child
    }
}

struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(page: &str) {
    let (here, mut background) = (Reader::new(), Vec::new());
    let text = fs::read_to_string(root().join(page)).unwrap();
    let mut ran = 0;
    for block in blocks(&text) {
        let place = format!("{page}:{}", block.line);
        if let Some(name) = block.mark.strip_prefix("file: ") {
            here.0.write(name, block.lines.join("\n"));
            continue;
        }
        if block.language != "console" {
            continue;
        }
        if let Some(reason) = block.mark.strip_prefix("not run: ") {
            assert!(reason.contains(' '), "{place}: no reason");
            continue;
        }
        let commands = commands(&block.lines);
        if block.mark == "in the background" {
            let [(script, shown)] = &commands[..] else {
                panic!("{place}: several commands");
            };
            assert!(shown.is_empty(), "{place}: nobody reads its output");
            background.push(here.start(script));
            continue;
        }
        let code = block.mark.strip_prefix("exits with ");
        let expected = code.map_or(0, |code| code.parse().unwrap());
        assert!(
            expected != 0 || block.mark.is_empty(),
            "{place}: {}",
            block.mark
        );
        for command in &commands {
            here.run(&place, command, expected);
            ran += 1;
        }
    }
    assert!(ran > 0, "{page}: nothing was run");
}

/// A test for each page with commands.
macro_rules! pages {
    ($($test:ident: $page:literal),+ $(,)?) => {
        $(
            #[test]
            fn $test() {
                run($page);
            }
        )+

        #[test]
        fn every_page_with_commands_is_run() {
            let mut expected = vec![$($page.to_owned()),+];
            expected.sort();
            assert_eq!(with_commands(), expected);
        }
    };
}

pages! {
    readme: "README.md",
    first_run: "docs/first-run.md",
    training: "docs/training.md",
    memory: "docs/memory.md",
    sweeps: "docs/sweeps.md",
    concepts: "docs/concepts.md",
    server: "docs/server.md",
    several_machines: "docs/several-machines.md",
    from_other_tools: "docs/from-other-tools.md",
    models_and_data: "docs/models-and-data.md",
    simulate: "docs/simulate.md",
    measuring: "docs/measuring.md",
}

fn with_commands() -> Vec<String> {
    let mut found = vec!["README.md".to_owned()];
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{folder}/{}", path.file_name().unwrap().to_str().unwrap());
            if path.is_dir() {
                folders.push(name);
            } else if fs::read_to_string(&path).unwrap().contains("```console") {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// Commands elsewhere than in a block are not run.
#[test]
fn blocks_and_commands_are_found() {
    let page = "text\n<!-- exits with 2 -->\n```console\n$ a \\\n    b\nout\n$ c\n```\n\n<!-- x -->\n\n```yaml\nk: v\n```\n";
    let found = blocks(page);
    assert_eq!(
        (found[0].line, found[0].mark, found[0].language),
        (3, "exits with 2", "console")
    );
    assert_eq!((found[1].mark, found[1].language), ("", "yaml"));
    let lines = commands(&found[0].lines);
    assert_eq!(
        lines,
        [
            ("a \\\n    b".to_owned(), vec!["out"]),
            ("c".to_owned(), vec![])
        ]
    );
    assert_eq!(words("loss 0.25 |  12s"), words("loss 3.5e-3 | 1.0 s"));
}
