//! `generate PROMPT`: completions of several adapters, side by side.

use std::{
    io::{self, IsTerminal, Read},
    path::PathBuf,
};

use loraloom_trainer::{GenerateOptions, Generator};
use serde::Serialize;

use super::source::{BASE, say_another_base};
use crate::{
    arguments::GenerateArguments,
    device,
    exit::Exit,
    failure::Failure,
    printer::{Printer, printable},
};

#[derive(Debug, Serialize)]
struct GenerateOutput<'a> {
    prompt: &'a str,
    completions: Vec<Completion<'a>>,
}

#[derive(Debug, Serialize)]
struct Completion<'a> {
    /// `null` for the model without an adapter.
    adapter: Option<&'a str>,
    directory: Option<&'a PathBuf>,
    text: &'a String,
}

pub(super) fn run(arguments: &GenerateArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let options = options(arguments)?;
    let chosen = &arguments.chosen;
    let source = &chosen.source;
    let model = source.model()?;
    let adapters = chosen.adapters()?;
    if let Some(run) = source.run.as_ref().filter(|_| adapters.is_empty()) {
        let run = run.display();
        printer.warning(&format!(
            "`{run}` has no adapters: only the base model answers"
        ));
    }
    let prompt = prompt(arguments)?;

    let opened = device::open(arguments.compute.device)?;
    printer.warnings(&opened.warnings);
    let directories: Vec<PathBuf> = adapters.iter().map(|(_, path)| path.clone()).collect();
    let generator = Generator::load(
        &model,
        arguments.compute.dtype,
        &directories,
        &opened.device,
    )?;
    for &index in generator.over_another_base() {
        say_another_base(&directories[index], &model, printer);
    }
    // Without adapters, the base model answers.
    let base = (chosen.compare_base || adapters.is_empty()).then_some(None);
    let mut who = Vec::from_iter(base);
    who.extend((0..adapters.len()).map(Some));
    let (most, left) = (
        options.max_new_tokens,
        generator.remaining_tokens(&prompt, &options)?,
    );
    if left > 0 && most > left {
        printer.warning(&format!(
            "the model's context leaves {left} tokens after this prompt: completions end there, not \
             after {most}"
        ));
    }
    let texts = generator.generate(&prompt, &who, &options)?;

    if arguments.json {
        let completion = |(who, text): (&Option<usize>, _)| {
            let adapter = who.map(|index| &adapters[index]);
            Completion {
                adapter: adapter.map(|(name, _)| name.as_str()),
                directory: adapter.map(|(_, path)| path),
                text,
            }
        };
        printer.json(&GenerateOutput {
            prompt: &prompt,
            completions: who.iter().zip(&texts).map(completion).collect(),
        })?;
    } else {
        let name = |who: &Option<usize>| who.map_or(BASE, |index| adapters[index].0.as_str());
        let names: Vec<&str> = who.iter().map(name).collect();
        printer.data(&side_by_side(&names, &texts, io::stdout().is_terminal()))?;
    }
    Ok(Exit::Success)
}

/// Completions as text: under their names if there are several, separated by one empty line regardless of their own
/// line ends. A single one that is not for a terminal is unchanged.
fn side_by_side(names: &[&str], texts: &[String], is_terminal: bool) -> String {
    let text = |text: &str| match trimmed(text) {
        text if is_terminal || texts.len() > 1 => printable(text),
        text => text.to_owned(),
    };
    if let [alone] = texts {
        return text(alone);
    }
    let entries = names.iter().zip(texts);
    let entries = entries.map(|(name, completion)| format!("== {name} ==\n{}", text(completion)));
    entries.collect::<Vec<_>>().join("\n\n")
}

fn trimmed(text: &str) -> &str {
    text.trim_end_matches(['\n', '\r'])
}

fn options(arguments: &GenerateArguments) -> Result<GenerateOptions, Failure> {
    let temperature = arguments.temperature;
    if temperature == 0.0 && (arguments.top_k.is_some() || arguments.top_p.is_some()) {
        let failure = Failure::usage("--top-k and --top-p have no effect at temperature 0");
        return Err(failure.hint("add `--temperature 1`"));
    }
    Ok(GenerateOptions {
        max_new_tokens: arguments.max_new_tokens,
        temperature,
        top_k: arguments.top_k.unwrap_or(0),
        top_p: arguments.top_p.unwrap_or(1.0),
        seed: arguments.seed,
        chat: arguments.chat,
    })
}

fn prompt(arguments: &GenerateArguments) -> anyhow::Result<String> {
    if arguments.prompt != "-" {
        return Ok(arguments.prompt.clone());
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(|error| {
        let message = format!("cannot read the prompt from stdin: {error}");
        Failure::new(Exit::Data, message)
    })?;
    // The final line end comes from the shell, not from the prompt.
    text.truncate(trimmed(&text).len());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::side_by_side;

    #[test]
    fn line_ends_of_a_completion_do_not_show() {
        let names = ["base", "a", "b"];
        let expected = "== base ==\none\n\n== a ==\ntwo\nlines\n\n== b ==\n";
        for end in ["", "\n", "\n\n", "\r\n"] {
            let texts = ["one", "two\nlines", ""].map(|text| format!("{text}{end}"));
            assert_eq!(side_by_side(&names, &texts, false), expected, "{end:?}");
            assert_eq!(
                side_by_side(&names[..1], &texts[..1], false),
                "one",
                "{end:?}"
            );
        }
    }

    #[test]
    fn control_characters_are_for_pipes_only() {
        let texts = ["\u{1b}[31m", "b"].map(str::to_owned);
        let shown = |count: usize, is_terminal| {
            side_by_side(&["a", "b"][..count], &texts[..count], is_terminal)
        };
        assert_eq!(shown(1, false), "\u{1b}[31m");
        assert_eq!(shown(1, true), "\\u{1b}[31m");
        assert_eq!(shown(2, false), "== a ==\n\\u{1b}[31m\n\n== b ==\nb");
    }
}
