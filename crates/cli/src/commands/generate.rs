//! `generate PROMPT` and `generate --prompts FILE`: completions of several adapters, side by side.

use std::{
    io::{self, IsTerminal, Read},
    path::{Path, PathBuf},
};

use indicatif::ProgressBar;
use loraloom_data::{DataError, Prompt, Tokenizer};
use loraloom_inference::{InferenceError, Sampling};
use loraloom_model::LlamaConfig;
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

/// Default number of sequences of a file's prompts that are completed together.
const AT_ONCE: usize = 16;

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

/// A completion of a prompt of a file.
#[derive(Debug, Serialize)]
struct Line<'a> {
    location: String,
    prompt: &'a str,
    #[serde(flatten)]
    completion: Completion<'a>,
}

/// The model with its adapters, and the names of those that answer.
struct Models {
    generator: Generator,
    /// Names and directories of adapters.
    adapters: Vec<(String, PathBuf)>,
    /// Indices of adapters, and `None` for the model without one.
    who: Vec<Option<usize>>,
}

pub(super) fn run(arguments: &GenerateArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let options = options(arguments)?;
    let chosen = &arguments.chosen;
    let source = &chosen.source;
    let model = source.model()?;
    let config = source.config(&model, arguments.compute.quantization)?;
    let adapters = chosen.adapters()?;
    if let Some(run) = source.run.as_ref().filter(|_| adapters.is_empty()) {
        let run = run.display();
        printer.warning(&format!(
            "`{run}` has no adapters: only the base model answers"
        ));
    }
    if let Some(path) = &arguments.prompts {
        let prompts = prompts(path, &model, &config, &options, printer)?;
        let models = Models::load(arguments, &model, &config, adapters, printer)?;
        let at_once = arguments.batch_size.unwrap_or(AT_ONCE);
        models.complete_all(&prompts, &options, at_once, arguments.json, printer)?;
    } else {
        let prompt = prompt(arguments)?;
        let models = Models::load(arguments, &model, &config, adapters, printer)?;
        models.complete(&prompt, &options, arguments.json, printer)?;
    }
    Ok(Exit::Success)
}

impl Models {
    fn load(
        arguments: &GenerateArguments,
        model: &Path,
        config: &LlamaConfig,
        adapters: Vec<(String, PathBuf)>,
        printer: &Printer,
    ) -> anyhow::Result<Self> {
        let opened = device::open(arguments.compute.device)?;
        printer.warnings(&opened.warnings);
        let directories: Vec<PathBuf> = adapters.iter().map(|(_, path)| path.clone()).collect();
        let dtype = arguments.compute.dtype;
        let generator = Generator::load(model, config, dtype, &directories, &opened.device)?;
        for &index in generator.over_another_base() {
            say_another_base(&directories[index], model, printer);
        }
        // Without adapters, the base model answers.
        let base = (arguments.chosen.compare_base || adapters.is_empty()).then_some(None);
        let mut who = Vec::from_iter(base);
        who.extend((0..adapters.len()).map(Some));
        Ok(Self {
            generator,
            adapters,
            who,
        })
    }

    fn complete(
        &self,
        prompt: &str,
        options: &GenerateOptions,
        json: bool,
        printer: &Printer,
    ) -> anyhow::Result<()> {
        let (most, left) = (
            options.max_new_tokens,
            self.generator.remaining_tokens(prompt, options)?,
        );
        if left > 0 && most > left {
            printer.warning(&format!(
                "the model's context leaves {left} tokens after this prompt: completions end there, not \
                 after {most}"
            ));
        }
        let texts = self.generator.generate(prompt, &self.who, options)?;
        if json {
            let completions = self.completions(&texts).collect();
            return printer.json(&GenerateOutput {
                prompt,
                completions,
            });
        }
        let text = side_by_side(&self.names(), &texts, io::stdout().is_terminal());
        Ok(printer.data(&text)?)
    }

    fn complete_all(
        &self,
        prompts: &[Prompt],
        options: &GenerateOptions,
        at_once: usize,
        json: bool,
        printer: &Printer,
    ) -> anyhow::Result<()> {
        let bar = printer.bar("completions", self.who.len() * prompts.len());
        let mut done = |count: usize| bar.iter().for_each(|bar| bar.inc(count as u64));
        let ids: Vec<&[u32]> = prompts.iter().map(|prompt| prompt.ids.as_slice()).collect();
        let who = &self.who;
        let texts = self
            .generator
            .answers(&ids, who, options, at_once, &mut done)?;
        bar.iter().for_each(ProgressBar::finish_and_clear);
        let mut before = "";
        for (prompt, texts) in prompts.iter().zip(&texts) {
            if json {
                for completion in self.completions(texts) {
                    printer.data(&serde_json::to_string(&Line {
                        location: prompt.location.to_string(),
                        prompt: &prompt.text,
                        completion,
                    })?)?;
                }
            } else {
                let (location, asked) = (&prompt.location, printable(trimmed(&prompt.text)));
                let asked = asked.replace('\n', "\n  ");
                let completions = labelled(&self.names(), texts);
                printer.data(&format!("{before}{location}\n  {asked}\n\n{completions}"))?;
                before = "\n";
            }
        }
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        let name = |who: &Option<usize>| who.map_or(BASE, |index| self.adapters[index].0.as_str());
        self.who.iter().map(name).collect()
    }

    fn completions<'a>(&'a self, texts: &'a [String]) -> impl Iterator<Item = Completion<'a>> {
        self.who.iter().zip(texts).map(|(who, text)| {
            let adapter = who.map(|index| &self.adapters[index]);
            Completion {
                adapter: adapter.map(|(name, _)| name.as_str()),
                directory: adapter.map(|(_, path)| path),
                text,
            }
        })
    }
}

/// The prompts of a file that are shorter than the model's context.
fn prompts(
    path: &Path,
    model: &Path,
    config: &LlamaConfig,
    options: &GenerateOptions,
    printer: &Printer,
) -> anyhow::Result<Vec<Prompt>> {
    let tokenizer = Tokenizer::load(model)?;
    let read = || Prompt::read(path, &tokenizer, options.chat);
    let (mut prompts, warnings) = printer
        .while_busy("reading prompts", read)
        .map_err(|error| match error {
            DataError::UnknownExtension(_) if error.hint().is_none() => {
                let failure = Failure::new(Exit::Data, error.to_string());
                failure
                    .hint("a file with a prompt in every line ends in .txt")
                    .into()
            }
            error => anyhow::Error::from(error),
        })?;
    for warning in warnings {
        printer.warning(&warning.to_string());
    }
    let context = config.max_position_embeddings;
    let all = prompts.len();
    let too_long: Vec<_> = prompts
        .extract_if(.., |prompt| prompt.ids.len() >= context)
        .collect();
    if let Some(first) = too_long.first() {
        let (prompt, location) = (first.ids.len(), &first.location);
        if prompts.is_empty() {
            let error = InferenceError::PromptTooLong { prompt, context };
            return Err(Failure::new(Exit::Data, format!("{location}: {error}")).into());
        }
        printer.warning(&format!(
            "{} of {all} prompts fill the model's context of {context} tokens and are not answered, the \
             first at {location}, which has {prompt}",
            too_long.len()
        ));
    }
    let (all, most) = (prompts.len(), options.max_new_tokens);
    let ended = prompts
        .iter()
        .filter(|prompt| prompt.ids.len() + most > context);
    let ended = ended.count();
    if ended > 0 {
        printer.warning(&format!(
            "the model's context of {context} tokens ends the completions of {ended} of {all} prompts \
             before {most} tokens"
        ));
    }
    Ok(prompts)
}

/// Completions as text: under their names if there are several, separated by one empty line regardless of their own
/// line ends. A single one that is not for a terminal is unchanged.
fn side_by_side(names: &[&str], texts: &[String], is_terminal: bool) -> String {
    if let [alone] = texts {
        let alone = trimmed(alone);
        return if is_terminal {
            printable(alone)
        } else {
            alone.to_owned()
        };
    }
    labelled(names, texts)
}

fn labelled(names: &[&str], texts: &[String]) -> String {
    let entries = names.iter().zip(texts).map(|(name, completion)| {
        let completion = printable(trimmed(completion));
        format!("== {name} ==\n{completion}")
    });
    entries.collect::<Vec<_>>().join("\n\n")
}

fn trimmed(text: &str) -> &str {
    text.trim_end_matches(['\n', '\r'])
}

fn options(arguments: &GenerateArguments) -> Result<GenerateOptions, Failure> {
    let temperature = arguments.temperature;
    let of_draws = [
        ("--top-k", arguments.top_k.is_some()),
        ("--top-p", arguments.top_p.is_some()),
        ("--min-p", arguments.min_p.is_some()),
    ];
    if temperature == 0.0
        && let Some((option, _)) = of_draws.iter().find(|(_, given)| *given)
    {
        let failure = Failure::usage(format!("{option} has no effect at temperature 0"));
        return Err(failure.hint("add `--temperature 1`"));
    }
    Ok(GenerateOptions {
        max_new_tokens: arguments.max_new_tokens,
        sampling: Sampling {
            temperature,
            top_k: arguments.top_k.unwrap_or(0),
            top_p: arguments.top_p.unwrap_or(1.0),
            min_p: arguments.min_p.unwrap_or(0.0),
            repetition_penalty: arguments.repetition_penalty,
            seed: arguments.seed,
        },
        chat: arguments.chat,
    })
}

fn prompt(arguments: &GenerateArguments) -> anyhow::Result<String> {
    if let Some(prompt) = arguments.prompt.as_ref().filter(|prompt| *prompt != "-") {
        return Ok(prompt.clone());
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
