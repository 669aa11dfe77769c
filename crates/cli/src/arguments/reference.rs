//! Generates `docs/cli.md` from the command tree.

use std::{env, fmt::Write, fs, path::Path};

use clap::{
    Arg, Command, CommandFactory,
    builder::{PossibleValue, StyledStr},
};

use super::Arguments;

const INTRODUCTION: &str = "\
# Command line

<!-- Generated from the command tree. Change the doc comments in crates/cli/src/arguments, then run
     LORALOOM_UPDATE_DOCS=1 cargo test --release --workspace reference -->

";

fn page() -> String {
    let mut root = Arguments::command();
    root.build();
    let mut page = INTRODUCTION.to_owned();
    let about = root.get_long_about().or(root.get_about());
    let _ = write!(page, "{}\n\n", about.map(paragraphs).unwrap_or_default());
    page.push_str("| Command | |\n|---|---|\n");
    for command in listed(&root) {
        let name = command.get_name();
        let about = command.get_about().map(sentence).unwrap_or_default();
        let _ = writeln!(page, "| [`{name}`](#loraloom-{name}) | {about} |");
    }
    page.push_str("\nOptions of every command:\n\n");
    page.push_str(&table(root.get_arguments()));
    let after = root.get_after_long_help().map(paragraphs);
    let _ = writeln!(page, "\n{}", after.unwrap_or_default());
    for command in listed(&root) {
        section(command, "loraloom", 2, &mut page);
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

/// Subcommands without clap's own `help`.
fn listed(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|command| command.get_name() != "help")
}

fn section(command: &Command, parent: &str, level: usize, page: &mut String) {
    let name = format!("{parent} {}", command.get_name());
    let _ = write!(page, "\n{} {name}\n\n", "#".repeat(level));
    let about = command.get_long_about().or(command.get_about());
    let _ = writeln!(page, "{}", about.map(sentence).unwrap_or_default());
    if command.has_subcommands() {
        for command in listed(command) {
            section(command, &name, level + 1, page);
        }
        return;
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let _ = write!(page, "\n```text\n{usage}\n```\n\n");
    let own = command
        .get_arguments()
        .filter(|argument| !argument.is_global_set());
    page.push_str(&table(own));
    if let Some(text) = command.get_after_long_help() {
        let _ = write!(page, "\n{}\n", paragraphs(text));
    }
}

/// A table of the arguments; empty without any.
fn table<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let mut rows = String::new();
    for argument in arguments {
        if matches!(argument.get_id().as_str(), "help" | "version") {
            continue;
        }
        let help = argument.get_long_help().or(argument.get_help());
        let help = help.map(sentence).unwrap_or_default();
        let takes_values = argument.get_action().takes_values();
        let values = argument.get_default_values().iter();
        let values = values.map(|value| format!("`{}`", value.to_string_lossy()));
        let default = values.collect::<Vec<_>>().join(", ");
        // A conditional default is part of the text.
        let (mut meaning, default) = match help.split_once(" [default: ") {
            Some((meaning, rest)) => {
                let (default, rest) = rest.split_once(']').unwrap_or((rest, ""));
                (format!("{meaning}{rest}"), default.to_owned())
            }
            None if takes_values => (help, default),
            None => (help, String::new()),
        };
        let values = argument.get_possible_values();
        if takes_values && !values.is_empty() {
            let names: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
            let _ = write!(meaning, " One of {}.", names.join(", "));
        }
        let short = argument.get_short();
        let short = short.map_or_else(String::new, |short| format!("`-{short}`, "));
        let name = argument.to_string();
        let name = name.trim_end_matches("...");
        let meaning = meaning.replace('|', "\\|");
        let _ = writeln!(rows, "| {short}`{name}` | {default} | {meaning} |");
    }
    if rows.is_empty() {
        return rows;
    }
    format!("| Argument | Default | Meaning |\n|---|---|---|\n{rows}")
}

/// Help with its full stop, which clap removes.
fn sentence(text: &StyledStr) -> String {
    let text = paragraphs(text);
    let stop = if text.ends_with(['.', ':']) { "" } else { "." };
    text + stop
}

/// Help as Markdown: indented lines are code.
fn paragraphs(text: &StyledStr) -> String {
    let mut shown = String::new();
    let mut is_code = false;
    for line in text.to_string().trim_end().lines() {
        let indented = line.starts_with("  ");
        if indented != is_code {
            shown.push_str(if indented { "\n```text\n" } else { "```\n" });
            is_code = indented;
        }
        shown.push_str(line.strip_prefix("  ").unwrap_or(line));
        shown.push('\n');
    }
    if is_code {
        shown.push_str("```\n");
    }
    shown.replace("\n\n\n", "\n\n").trim_end().to_owned()
}

#[test]
fn the_reference_of_the_command_line_is_the_command_trees() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let page = page();
    if env::var_os("LORALOOM_UPDATE_DOCS").is_some() {
        fs::write(&path, &page).expect("docs/cli.md can be written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page,
        "docs/cli.md is out of date: run LORALOOM_UPDATE_DOCS=1 cargo test --release --workspace reference"
    );
}
