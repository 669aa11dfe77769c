//! `eval --dataset PATH`: adapters side by side on one dataset, with the base model.

mod answers;
mod preferences;
mod rows;

use std::{
    cmp::Ordering,
    fs::{self, File},
    path::{Path, PathBuf},
};

use indicatif::ProgressBar;
use loraloom_data::{DataError, EncodeReport, Samples, Split, Tokenizer};
use loraloom_server::with_causes;
use loraloom_trainer::{Generator, Score, check_vocabulary, quoted};
use serde::Serialize;

use self::{answers::Questions, preferences::Preferences, rows::Rows};
use super::source::{BASE, say_another_base};
use crate::{
    arguments::EvalArguments,
    device,
    exit::Exit,
    failure::{self, Failure},
    printer::Printer,
    run_directory,
    table::{self, or_dash},
};

#[derive(Debug, Serialize)]
struct EvalOutput<'a> {
    dataset: WrittenRows<'a>,
    results: &'a [WrittenResult],
}

/// The evaluated rows, and counts of the others.
#[derive(Debug, Serialize)]
struct WrittenRows<'a> {
    name: &'a str,
    /// `training` or `validation`, of a dataset of the run.
    split: Option<&'static str>,
    format: &'a str,
    max_seq_len: usize,
    train_on_prompt: bool,
    total_rows: usize,
    dropped: usize,
    truncated: usize,
    tokens_cut: usize,
}

impl<'a> WrittenRows<'a> {
    fn new(rows: &'a Rows, report: &'a EncodeReport) -> Self {
        Self {
            name: &rows.name,
            split: rows.split_of_run().map(Split::name),
            format: &report.format,
            max_seq_len: rows.max_seq_len,
            train_on_prompt: rows.train_on_prompt,
            total_rows: report.rows,
            dropped: report.dropped_without_target,
            truncated: report.truncated,
            tokens_cut: report.tokens_cut,
        }
    }
}

#[derive(Debug, Serialize)]
struct WrittenResult {
    /// `null` for the model without an adapter.
    adapter: Option<String>,
    directory: Option<PathBuf>,
    loss: f64,
    perplexity: f64,
    accuracy: f64,
    target_tokens: usize,
    rows: usize,
    /// Share of `exact_match_rows` that were answered correctly.
    exact_match: Option<f64>,
    exact_match_rows: Option<usize>,
    /// Of rows with preferences.
    #[serde(flatten)]
    preferences: Option<Preferences>,
}

pub(super) fn run(arguments: &EvalArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let chosen = &arguments.chosen;
    let source = &chosen.source;
    let model = source.model()?;
    let adapters = chosen.adapters()?;
    if let Some(run) = source.run.as_ref().filter(|_| adapters.is_empty()) {
        let run = run.display();
        printer.warning(&format!(
            "`{run}` has no adapters: only the base model is evaluated"
        ));
    }
    let runs = source.run.as_deref().map(run_directory::configs);
    let runs = runs.transpose()?.unwrap_or_default();
    let config = source.config(&model, arguments.compute.quantization)?;
    let tokenizer = Tokenizer::load(&model)?;
    let names: Vec<&str> = adapters.iter().map(|(name, _)| name.as_str()).collect();
    let rows = Rows::open(arguments, &runs, &names, &config, printer)?;
    let encode = || rows.encode(&tokenizer);
    let encoded = printer.while_busy("reading data", encode);
    let encoded = encoded.map_err(|error| refused(error, rows.split_of_run().is_some()))?;
    check_vocabulary(&rows.name, &encoded.samples, config.vocab_size)?;
    if arguments.json {
        printer.warnings(&left_out(&encoded.report, rows.max_seq_len));
    }
    let questions = Questions::of(&rows, arguments, &tokenizer, &config, printer)?;
    // Opened first, so that a file that cannot be written fails before anything is computed.
    let answers = arguments.answers.as_deref();
    if let Some(path) = answers {
        refuse_input(path, arguments)?;
    }
    let create = |path| Ok::<_, Failure>((path, failure::written(path, File::create(path))?));
    let answers = answers.map(create).transpose()?;

    let opened = device::open(arguments.compute.device)?;
    printer.warnings(&opened.warnings);
    let directories: Vec<PathBuf> = adapters.iter().map(|(_, path)| path.clone()).collect();
    let load = || {
        Generator::load(
            &model,
            &config,
            arguments.compute.dtype,
            &directories,
            &opened.device,
        )
    };
    let generator = printer.while_busy("reading weights", load)?;
    for &index in generator.over_another_base() {
        say_another_base(&directories[index], &model, printer);
    }
    let samples = &encoded.samples;
    let shows_base = chosen.compare_base || adapters.is_empty();
    // Rewards compare with the base model.
    let has_base = shows_base || preferences::are_in(samples)?;
    let mut who = Vec::from_iter(has_base.then_some(None));
    who.extend((0..adapters.len()).map(Some));
    let mut scores = score(&generator, samples, &who, arguments.batch_size, printer)?;
    let base = scores[0].preferences.clone();
    if !shows_base && has_base {
        who.remove(0);
        scores.remove(0);
    }
    let result = |(who, score): (&Option<usize>, &Score)| WrittenResult {
        adapter: who.map(|index| adapters[index].0.clone()),
        directory: who.map(|index| adapters[index].1.clone()),
        loss: score.loss(),
        perplexity: score.perplexity(),
        accuracy: score.accuracy(),
        target_tokens: score.targets,
        rows: samples.rows(),
        exact_match: None,
        exact_match_rows: None,
        preferences: Preferences::of(who.map(|_| &base[..]), score, samples.per_row()),
    };
    let mut results: Vec<_> = who.iter().zip(&scores).map(result).collect();
    if let Some(questions) = &questions {
        let names: Vec<_> = results
            .iter()
            .map(|result| result.adapter.clone())
            .collect();
        let judged = questions.ask(&generator, &who, &names, arguments.batch_size, printer)?;
        for (index, result) in results.iter_mut().enumerate() {
            let correct = judged.iter().filter(|row| row[index].correct).count();
            result.exact_match = Some(correct as f64 / judged.len() as f64);
            result.exact_match_rows = Some(judged.len());
        }
        if let Some((path, file)) = answers {
            failure::written(path, answers::write(file, &judged))?;
        }
    }
    if arguments.json {
        printer.json(&EvalOutput {
            dataset: WrittenRows::new(&rows, &encoded.report),
            results: &results,
        })?;
    } else {
        printer.data(&text(&rows, &encoded.report, results))?;
    }
    Ok(Exit::Success)
}

fn score(
    generator: &Generator,
    samples: &Samples,
    who: &[Option<usize>],
    at_once: usize,
    printer: &Printer,
) -> anyhow::Result<Vec<Score>> {
    let bar = printer.bar("rows evaluated", who.len() * samples.len());
    let mut done = |count: usize| bar.iter().for_each(|bar| bar.inc(count as u64));
    let scores = generator.evaluate(samples, who, at_once, &mut done)?;
    bar.iter().for_each(ProgressBar::finish_and_clear);
    Ok(scores)
}

/// Refuses to write answers over the rows, or over a file of the run.
fn refuse_input(answers: &Path, arguments: &EvalArguments) -> Result<(), Failure> {
    let full = [answers, Path::new(&arguments.dataset)].map(fs::canonicalize);
    if let [Ok(answers), Ok(dataset)] = &full
        && answers == dataset
    {
        return Err(Failure::usage(
            "the answers and the dataset are the same file",
        ));
    }
    match &arguments.chosen.source.run {
        Some(run) => run_directory::refuse_own_file(answers, run),
        None => Ok(()),
    }
}

/// The error about rows that cannot be evaluated, with this command's options instead of a configuration's keys.
fn refused(error: DataError, of_run: bool) -> anyhow::Error {
    let DataError::NoTargets {
        rows,
        max_seq_len,
        longest,
        ..
    } = error
    else {
        return match error.hint() {
            Some(hint) if !of_run => Failure::new(Exit::Data, with_causes(&error))
                .hint(as_options(&hint))
                .into(),
            _ => error.into(),
        };
    };
    let message = format!(
        "none of the {rows} rows has a target token within {max_seq_len} tokens; the longest has {longest}"
    );
    Failure::new(Exit::Data, message)
        .hint("raise --max-seq-len")
        .into()
}

/// A hint about keys of a dataset, in options.
fn as_options(hint: &str) -> String {
    let mut hint = hint.to_owned();
    if let Some((before, rest)) = hint.split_once("`columns: {")
        && let Some((columns, after)) = rest.split_once("}`")
    {
        let columns = columns.replace(": ", "=").replace(", ", ",");
        hint = format!("{before}`--columns {}`{after}", quoted(columns));
    }
    let options = [
        ("set `columns`", "set `--columns`"),
        ("`template`", "`--template`"),
        ("set train_on_prompt: true", "add `--train-on-prompt`"),
        (
            "set train_on_prompt: false for the adapters of this dataset",
            "leave out `--train-on-prompt`",
        ),
        ("raise train.max_seq_len", "raise --max-seq-len"),
    ];
    let options = options.iter();
    options.fold(hint, |hint, (key, option)| hint.replace(key, option))
}

/// Warnings about rows that are dropped or cut.
fn left_out(report: &EncodeReport, max_seq_len: usize) -> Vec<String> {
    let (rows, dropped) = (report.rows, report.dropped_without_target);
    let (cut, tokens) = (report.truncated, report.tokens_cut);
    let within = match cut {
        0 => String::new(),
        _ => format!(" within {max_seq_len} tokens"),
    };
    let dropped = (dropped > 0)
        .then(|| format!("{dropped} of {rows} rows are dropped: no target token{within}"));
    let cut = (cut > 0).then(|| {
        format!(
            "{cut} of {rows} rows are cut to {max_seq_len} tokens and lose {tokens}; raise \
             --max-seq-len to keep them"
        )
    });
    dropped.into_iter().chain(cut).collect()
}

/// A table with the best first, below a description of the rows.
fn text(rows: &Rows, report: &EncodeReport, mut results: Vec<WrittenResult>) -> String {
    let mut text = format!("{}: {}", rows.description(), report.format);
    for line in left_out(report, rows.max_seq_len) {
        text = format!("{text}\n{line}");
    }
    results.sort_by(best_first);
    let heading = [
        "<adapter",
        "loss",
        "perplexity",
        "accuracy",
        "target tokens",
        "rows",
        "exact match",
    ];
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let row = |result: &WrittenResult| {
        let answered = result.exact_match.zip(result.exact_match_rows);
        let answered = answered.map(|(share, rows)| {
            let correct = (share * rows as f64).round();
            format!("{} ({correct} of {rows})", percent(share))
        });
        [
            result.adapter.as_deref().unwrap_or(BASE).to_owned(),
            format!("{:.4}", result.loss),
            perplexity(result.perplexity),
            percent(result.accuracy),
            result.target_tokens.to_string(),
            result.rows.to_string(),
            or_dash(answered),
        ]
    };
    let all: Vec<_> = results.iter().map(row).collect();
    let mut text = format!("{text}\n\n{}", table::aligned(heading, &all));
    let rewards = results.iter().filter_map(|result| {
        let preferences = result.preferences.as_ref()?;
        Some(preferences.cells(result.adapter.as_deref().unwrap_or(BASE)))
    });
    let rewards: Vec<_> = rewards.collect();
    if !rewards.is_empty() {
        text = format!(
            "{text}\n{}",
            table::aligned(preferences::HEADINGS, &rewards)
        );
    }
    text
}

/// Orders by correct answers, then by loss. NaN is last.
fn best_first(left: &WrittenResult, right: &WrittenResult) -> Ordering {
    let matched = |result: &WrittenResult| result.exact_match.unwrap_or(0.0);
    let more = matched(right).total_cmp(&matched(left));
    more.then(left.loss.abs().total_cmp(&right.loss.abs()))
}

fn perplexity(perplexity: f64) -> String {
    if perplexity < 1e6 {
        format!("{perplexity:.3}")
    } else {
        format!("{perplexity:.3e}")
    }
}
