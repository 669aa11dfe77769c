use std::{
    fs::File,
    io::{self, BufWriter, Write},
};

use indicatif::ProgressBar;
use loraloom_data::{DataError, Location, Sample, Tokenizer};
use loraloom_model::LlamaConfig;
use loraloom_trainer::{ExactMatch, GenerateOptions, Generator};
use serde::Serialize;

use super::rows::Rows;
use crate::{arguments::EvalArguments, failure::Failure, printer::Printer};

/// Default limit on the tokens of an answer.
const MAX_NEW_TOKENS: usize = 256;

/// Rows to answer, with the expected answers.
pub(super) struct Questions {
    samples: Vec<Sample>,
    rows: Vec<Question>,
    exact_match: ExactMatch,
    max_new_tokens: usize,
}

#[derive(Debug, Clone, Serialize)]
struct Question {
    location: String,
    prompt: String,
    reference: String,
    expected: String,
}

/// An answer to a row.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    #[serde(flatten)]
    question: Question,
    adapter: Option<String>,
    text: String,
    /// `null` if nothing in the text matches.
    extracted: Option<String>,
    pub(super) correct: bool,
}

impl Questions {
    /// The questions of rows, if answers are requested.
    pub(super) fn of(
        rows: &Rows,
        arguments: &EvalArguments,
        tokenizer: &Tokenizer,
        model: &LlamaConfig,
        printer: &Printer,
    ) -> anyhow::Result<Option<Self>> {
        let Some(answer) = &arguments.exact_match else {
            return Ok(None);
        };
        if rows.are_plain_text() {
            let message = format!(
                "`{}` has no prompts to answer: its rows are text",
                rows.name
            );
            let hint = "--exact-match needs rows with a prompt and a completion, or messages";
            return Err(Failure::usage(message).hint(hint).into());
        }
        let exact_match = ExactMatch {
            answer: answer.clone(),
            ignored: arguments.ignore.clone(),
        };
        let (context, most) = (
            model.max_position_embeddings,
            arguments.max_new_tokens.unwrap_or(MAX_NEW_TOKENS),
        );
        let (samples, locations) = rows.questions(tokenizer)?;
        let all = samples.len();
        let mut questions = Self {
            samples: Vec::with_capacity(all),
            rows: Vec::with_capacity(all),
            exact_match,
            max_new_tokens: most,
        };
        let (mut too_long, mut ended) = (0, 0);
        for (sample, location) in samples.into_iter().zip(locations) {
            let prompt = sample.last_targets().start;
            if prompt >= context {
                too_long += 1;
            } else if questions.add(sample, &location, tokenizer)? {
                ended += usize::from(prompt + most > context);
            }
        }
        let (judged, pattern) = (questions.rows.len(), answer.as_str());
        let fit = all - too_long;
        if too_long > 0 {
            printer.warning(&format!(
                "{too_long} of {all} prompts fill the model's context of {context} tokens: their rows do not \
                 count for the exact match"
            ));
        }
        if judged == 0 {
            let message = format!("none of the {fit} references matches `{pattern}`");
            let hint = "the expression must match in the completions of the rows, too";
            return Err(Failure::usage(message).hint(hint).into());
        }
        if judged < fit {
            printer.warning(&format!(
                "{} of {fit} references do not match `{pattern}`: their rows do not count for the exact match",
                fit - judged
            ));
        }
        if ended > 0 {
            printer.warning(&format!(
                "the model's context of {context} tokens ends the answers to {ended} of {judged} prompts \
                 before {most} tokens"
            ));
        }
        Ok(Some(questions))
    }

    /// Adds a row, if the answer can be extracted from its reference.
    fn add(
        &mut self,
        sample: Sample,
        location: &Location,
        tokenizer: &Tokenizer,
    ) -> Result<bool, DataError> {
        let targets = sample.last_targets();
        let reference = tokenizer.decode(&sample.ids[targets.clone()], true)?;
        let Some(expected) = self.exact_match.extract(&reference) else {
            return Ok(false);
        };
        self.rows.push(Question {
            location: location.to_string(),
            prompt: tokenizer.decode(&sample.ids[..targets.start], false)?,
            reference,
            expected,
        });
        self.samples.push(sample);
        Ok(true)
    }

    /// Asks each of `who`, whose names are `names`. Returns the answers by row.
    pub(super) fn ask(
        &self,
        generator: &Generator,
        who: &[Option<usize>],
        names: &[Option<String>],
        at_once: usize,
        printer: &Printer,
    ) -> anyhow::Result<Vec<Vec<Answer>>> {
        let bar = printer.bar("rows answered", who.len() * self.rows.len());
        let mut done = |count: usize| bar.iter().for_each(|bar| bar.inc(count as u64));
        let options = GenerateOptions {
            max_new_tokens: self.max_new_tokens,
            ..GenerateOptions::default()
        };
        let prompts = self.samples.iter();
        let prompts = prompts.map(|sample| &sample.ids[..sample.last_targets().start]);
        let prompts: Vec<&[u32]> = prompts.collect();
        let texts = generator.answers(&prompts, who, &options, at_once, &mut done)?;
        bar.iter().for_each(ProgressBar::finish_and_clear);
        let answer = |question: &Question, text: String, adapter: &Option<String>| {
            let extracted = self.exact_match.extract(&text);
            Answer {
                question: question.clone(),
                adapter: adapter.clone(),
                text,
                correct: extracted.as_ref() == Some(&question.expected),
                extracted,
            }
        };
        let rows = self.rows.iter().zip(texts).map(|(question, texts)| {
            let answers = texts.into_iter().zip(names);
            let answers = answers.map(|(text, adapter)| answer(question, text, adapter));
            answers.collect()
        });
        Ok(rows.collect())
    }
}

/// Writes answers as JSON lines.
pub(super) fn write(file: File, rows: &[Vec<Answer>]) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    for answer in rows.iter().flatten() {
        serde_json::to_writer(&mut file, answer)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}
