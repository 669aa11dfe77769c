//! Errors of data and tokenizer files, with hints.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    format::similar_name,
    preference::{PreferenceFault, TEXT_FOR_TEMPLATE, WHOLE_CHAT},
    reader::{Compression, extension},
    row::Location,
    row_warnings::ROLES,
};

/// Hint for a quote that spans lines of a CSV file.
pub(crate) const QUOTE_HINT: &str =
    "close the quote; if it is text, put the whole field in quotes and write the quote twice: \"\"";

const NO_TEMPLATE_HINT: &str = "use an instruction-tuned model's tokenizer, put a chat_template.jinja into the model \
                                directory, or set the dataset's `template`";

/// An error between a file and its samples.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The caller stopped the reading.
    #[error("reading was stopped")]
    Stopped,
    /// A file is not as it was in an earlier pass.
    #[error("{} changed while it was read", .0.display())]
    Changed(PathBuf),
    /// Samples that exceed memory cannot be kept.
    #[error("cannot keep samples in a temporary file in {}", directory.display())]
    Kept {
        /// Directory of temporary files.
        directory: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A compressed file is damaged, or was cut off.
    #[error("{} is damaged, or not a {compression} file: {}", path.display(), archive_problem(source))]
    Archive {
        /// Path of the file.
        path: PathBuf,
        /// How it is compressed.
        compression: Compression,
        /// Error of the decoder.
        source: io::Error,
    },
    /// A directory, a pipe or a device.
    #[error("{} is {}", .0.display(), if .0.is_dir() { "a folder" } else { "not a regular file" })]
    NotAFile(PathBuf),
    /// A Parquet file cannot be read.
    #[error("cannot read `{}` as Parquet: {reason}", path.display())]
    Parquet {
        /// Path of the file.
        path: PathBuf,
        /// Message of the parser.
        reason: String,
    },
    /// The extension is not a known format's.
    #[error(
        "{} has no known extension: expected .parquet, or .jsonl, .ndjson, .json, .csv or .tsv, with or \
         without .gz or .zst", .0.display()
    )]
    UnknownExtension(PathBuf),
    /// A file without rows.
    #[error("{} has no rows", .0.display())]
    Empty(PathBuf),
    /// A dataset without files.
    #[error("dataset `{0}` has no path")]
    NoPath(String),
    /// The text of a file does not parse.
    #[error("{}:{line}{}: {reason}", path.display(), suffix(*column))]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Column in bytes, from 1, if the parser knows it.
        column: Option<u64>,
        /// Message of the parser.
        reason: String,
    },
    /// A table's delimiter seems to differ from its extension's.
    #[error(
        "{}: its columns are separated by {}, not by {}: the header is `{header}`",
        path.display(),
        delimiter(*found),
        delimiter(*expected)
    )]
    Delimiter {
        /// Path of the file.
        path: PathBuf,
        /// The header, as one column.
        header: String,
        /// The delimiter in the header.
        found: char,
        /// The delimiter of the extension.
        expected: char,
    },
    /// A quote in a CSV file spans lines that are probably rows.
    #[error("{}:{line}:{column}: {reason}", path.display())]
    Quote {
        /// Path of the file.
        path: PathBuf,
        /// Line where it opens, from 1.
        line: u64,
        /// Column in bytes, from 1.
        column: u64,
        /// Description of these lines.
        reason: String,
    },
    /// A file is not UTF-8.
    #[error("{}:{line}: invalid UTF-8 at byte {byte} of the line", path.display())]
    InvalidUtf8 {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Byte within the line, from 1.
        byte: usize,
    },
    /// A row cannot be used.
    #[error("{location}: {problem}")]
    Row {
        /// Place of the row.
        location: Location,
        /// Description of the mistake.
        problem: RowError,
    },
    /// None of the first rows has the columns of a format.
    #[error("cannot detect the format of {}: its columns are {}{left_out}", path.display(), list(columns))]
    UnknownFormat {
        /// Path of the file.
        path: PathBuf,
        /// Columns of its first row.
        columns: Vec<String>,
        /// The setting that would work, if the columns are those of a format except for case and white space.
        similar: Option<String>,
        /// A clause about columns that are not read, or nothing.
        left_out: String,
    },
    /// Files of one dataset have different formats.
    #[error("{} is {first_format} but {} is {format}", first.display(), path.display())]
    MixedFormats {
        /// The first file.
        first: PathBuf,
        /// Format of that file.
        first_format: String,
        /// The file that differs.
        path: PathBuf,
        /// Format of that file.
        format: String,
    },
    /// A dataset's or a tokenizer's template does not compile.
    #[error("{origin}: {source}")]
    Template {
        /// The file or configuration key that holds it.
        origin: String,
        /// Description of the mistake.
        source: TemplateError,
    },
    /// The validation split would leave no row to train on.
    #[error(
        "validation = {fraction} holds out {held_out} of {rows} rows of `{dataset}` and leaves no \
         training rows"
    )]
    NothingToTrain {
        /// Name of the dataset.
        dataset: String,
        /// The fraction asked for.
        fraction: f64,
        /// Rows it holds out.
        held_out: usize,
        /// Number of rows.
        rows: usize,
    },
    /// A validation fraction outside [0, 1).
    #[error("validation = {fraction} of dataset `{dataset}` is not a fraction in [0, 1)")]
    InvalidFraction {
        /// Name of the dataset.
        dataset: String,
        /// Value of `validation`.
        fraction: f64,
    },
    /// Every row lost all its targets.
    #[error(
        "none of the {rows} {split} rows of `{dataset}` has a target token within max_seq_len = {max_seq_len} \
         (longest row: {longest} tokens)"
    )]
    NoTargets {
        /// Name of the dataset.
        dataset: String,
        /// `training` or `validation`.
        split: &'static str,
        /// Number of rows.
        rows: usize,
        /// The limit they were cut to.
        max_seq_len: usize,
        /// Tokens of the longest row before cutting.
        longest: usize,
    },
    /// No row has anything to train on, even uncut.
    #[error("none of the {rows} {split} rows of `{dataset}` has a target token: {reason}")]
    NothingInRows {
        /// Name of the dataset.
        dataset: String,
        /// `training` or `validation`.
        split: &'static str,
        /// Number of rows.
        rows: usize,
        /// The missing part.
        reason: NoTarget,
    },
    /// Rows with preferences cannot be used.
    #[error("{}", faulty(dataset, what, *rows, faults))]
    Preferences {
        /// Name of the dataset.
        dataset: String,
        /// The rows that were read: `rows`, `training rows` or `validation rows`.
        what: String,
        /// Their number.
        rows: usize,
        /// Each mistake, the number of rows with it, and the first of them.
        faults: Vec<(PreferenceFault, usize, Location)>,
    },
    /// Preferences are of completions.
    #[error(
        "`{0}` has rows with preferences, whose losses take no tokens of prompts, but train_on_prompt is set"
    )]
    PreferencesOfPrompts(String),
    /// Messages without a chat template.
    #[error("`{dataset}` holds chat messages but the tokenizer in {} has no chat template", directory.display())]
    NoChatTemplate {
        /// Name of the dataset.
        dataset: String,
        /// Path of the model directory.
        directory: PathBuf,
    },
    /// A model directory lacks a file.
    #[error("{} does not exist", .0.display())]
    MissingModelFile(PathBuf),
    /// A tokenizer file does not parse.
    #[error("cannot use {}: {reason}", path.display())]
    MalformedModelFile {
        /// Path of the file.
        path: PathBuf,
        /// Message of the parser.
        reason: String,
    },
    /// A special token is not in the vocabulary.
    #[error("{key} `{token}` of {} is not in the tokenizer's vocabulary", path.display())]
    UnknownSpecialToken {
        /// The file that names it.
        path: PathBuf,
        /// Its key, such as `bos_token`.
        key: &'static str,
        /// Text of the token.
        token: String,
    },
    /// A tokenizer without an end-of-sequence token cannot prepare training data.
    #[error("the tokenizer in {} has no EOS token", .0.display())]
    NoEos(PathBuf),
    /// The tokenizer failed.
    #[error("tokenizer: {0}")]
    Tokenize(String),
    /// An order over no samples or of empty steps.
    #[error("cannot order {num_samples} samples in steps of {rows_per_step} rows")]
    EmptyOrder {
        /// Samples asked for.
        num_samples: usize,
        /// Rows of one step asked for.
        rows_per_step: usize,
    },
}

/// The reason why an uncut row has nothing to train on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoTarget {
    /// No message is by the assistant.
    #[error("no message of role `assistant`; found: {}", list(.0))]
    NoAssistant(Vec<String>),
    /// All messages have a flag against training.
    #[error("`train` or `weight` excludes every message from training")]
    NotTrained,
    /// A template renders it as empty text.
    #[error("the template renders no target text")]
    NothingRendered,
    /// The column that is trained on has no text.
    #[error("column `{0}` is empty")]
    Empty(String),
    /// A pair cannot be used.
    #[error("{0}")]
    Preference(PreferenceFault),
}

impl NoTarget {
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::NoAssistant(roles) if roles.iter().all(|role| ROLES.contains(&&**role)) => {
                "add assistant messages, or set train_on_prompt: true to train on everything"
            }
            Self::NoAssistant(_) => {
                "use the roles system, user, assistant and tool; `from: gpt` is accepted, `role: gpt` \
                 is not"
            }
            Self::NotTrained => "set `train: true` for the messages to train on",
            Self::NothingRendered => {
                "check which columns and messages the template prints, and under which conditions"
            }
            Self::Empty(_) => "set `columns` to the column that has the text",
            Self::Preference(fault) => fault.hint(),
        }
    }
}

/// A mistake in one row.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// Not a JSON object.
    #[error("expected an object, found {0}")]
    NotAnObject(String),
    /// A column is missing.
    #[error("no column `{column}`; the row has {}", list(available))]
    MissingColumn {
        /// Name of the column.
        column: String,
        /// Columns of the row.
        available: Vec<String>,
    },
    /// A row of prompts has none.
    #[error("no column `prompt` or `messages`; the row has {}", list(available))]
    NoPrompt {
        /// Columns of the row.
        available: Vec<String>,
    },
    /// A prompt has no tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A column has another type.
    #[error("column `{column}` is {found}, expected {expected}")]
    WrongType {
        /// Name of the column.
        column: String,
        /// Expected type.
        expected: &'static str,
        /// Type that was found.
        found: String,
    },
    /// A chat is text.
    #[error("column `{0}` is a string that holds a list, expected the list of messages itself")]
    ListAsText(String),
    /// A chat message cannot be used.
    #[error("message {message} of column `{column}`: {reason}")]
    Message {
        /// Name of the column.
        column: String,
        /// Index of the message, from 1.
        message: usize,
        /// Description of the mistake.
        reason: String,
    },
    /// A row with preferences cannot be used.
    #[error("{0}")]
    Preference(#[from] PreferenceFault),
    /// The template failed on this row.
    #[error("template: {0}")]
    Template(#[from] TemplateError),
    /// The tokenizer failed on this row.
    #[error("tokenizer: {0}")]
    Tokenize(String),
}

/// A mistake in a template or its output.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// It does not compile.
    #[error("syntax: {0}")]
    Syntax(String),
    /// It has no text.
    #[error("it is empty")]
    Empty,
    /// It uses a column that the row does not have.
    #[error("no column `{column}`; the row has {}", list(available))]
    UnknownColumn {
        /// Name of the column.
        column: String,
        /// Columns of the row.
        available: Vec<String>,
    },
    /// It prints a null.
    #[error("it prints a null, which becomes the text `None`")]
    PrintsNull,
    /// It failed while rendering.
    #[error("{0}")]
    Render(String),
    /// It takes too many steps.
    #[error("the template took more than {0} steps")]
    TooManySteps(u64),
    /// It produces too much text.
    #[error("the template produced more than {0} bytes of text")]
    TooLong(usize),
    /// The text of a message cannot be located in the rendering.
    #[error("cannot locate the text of message {message}: {reason}")]
    Ambiguous {
        /// Index of the message, from 1.
        message: usize,
        /// Reason for the ambiguity.
        reason: String,
    },
    /// The model has no template.
    #[error("there is no chat template")]
    Missing,
    /// It marks parts of a prompt.
    #[error("{{% generation %}} marks a part of the prompt, but only the completion is trained on")]
    MarkedPrompt,
    /// The `{% generation %}` blocks cannot be told apart in the rendering.
    #[error("its generation blocks are not balanced, or the text contains U+FDD0 or U+FDD1")]
    Generation,
}

impl DataError {
    /// Advice for the mistake, if known.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Archive { compression, .. } => {
                let test = compression.test();
                return Some(format!(
                    "download or recreate the file; check it with `{test}`"
                ));
            }
            Self::Changed(_) => "wait until nothing writes to it, then run the command again",
            Self::Kept { .. } => {
                "it takes up to three bytes a token; set TMPDIR to a directory with space"
            }
            Self::Io { path, .. } | Self::UnknownExtension(path) if is_url(path) => {
                "only local files are supported: download it, and give its path"
            }
            Self::Malformed { path, reason, .. }
                if reason.starts_with("EOF") && has_lines(path) =>
            {
                "each line must hold one object; rename a file with one JSON document to .json"
            }
            Self::NotAFile(path) if path.is_dir() => {
                return Some(format!(
                    "name its files, for example `{}`",
                    path.join("*.jsonl").display()
                ));
            }
            Self::NotAFile(_) => "use a .jsonl, .ndjson, .json, .csv, .tsv or .parquet file",
            Self::Quote { .. } => QUOTE_HINT,
            Self::Delimiter { found: '\t', .. } => "rename it to .tsv",
            Self::Delimiter { found: ',', .. } => "rename it to .csv",
            Self::Delimiter { .. } => "save it with commas, or as .tsv with tabs",
            Self::Parquet { reason, .. } if reason.contains("isabled feature") => {
                "compressions are Snappy and gzip: write it again with `compression=\"snappy\"`"
            }
            Self::Parquet { .. } => "download or create it again",
            Self::UnknownFormat {
                similar: Some(similar),
                ..
            } => {
                return Some(format!(
                    "their case or surrounding white space differs from the expected names; \
                     rename them, or set `{similar}`"
                ));
            }
            Self::UnknownFormat { .. } => {
                "name the columns, for example `columns: {prompt: question, completion: answer}`, \
                 or give a `template`"
            }
            Self::MixedFormats { .. } => "set `columns`, or make each file a dataset",
            Self::NothingToTrain { .. } => {
                "lower `validation`, or name a file with validation rows"
            }
            Self::InvalidUtf8 { .. } => "save the file as UTF-8",
            Self::NothingInRows { reason, .. } => reason.hint(),
            Self::Template {
                source: TemplateError::Empty,
                ..
            } => "leave `template` out to train on the columns as they are",
            Self::Template {
                source: TemplateError::MarkedPrompt,
                ..
            } => "leave `columns` out, and the template renders the whole row",
            Self::NoTargets { .. } => "raise train.max_seq_len",
            Self::NoChatTemplate { .. } => NO_TEMPLATE_HINT,
            Self::Preferences { faults, .. } => faults.first()?.0.hint(),
            Self::PreferencesOfPrompts(_) => {
                "set train_on_prompt: false for the adapters of this dataset"
            }
            Self::MissingModelFile(_) => {
                "the model directory needs a tokenizer.json; transformers writes one with \
                 AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            }
            Self::NoEos(_) => "set `eos_token` in tokenizer_config.json",
            Self::Row { problem, .. } => return problem.hint(),
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

impl RowError {
    /// Advice for the mistake, if known.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::MissingColumn { column, available }
            | Self::Template(TemplateError::UnknownColumn { column, available })
                if let Some(similar) = similar_name(column, available) =>
            {
                return Some(format!("did you mean `{similar}`?"));
            }
            Self::MissingColumn { .. } => {
                "every row needs the column; set `columns` to the columns that hold the data"
            }
            Self::Template(TemplateError::UnknownColumn { .. }) => {
                "use columns that every row has, or test for one with {% if COLUMN %}"
            }
            Self::ListAsText(_) => {
                "a CSV cell is always text; write the chats as JSONL, one object per line, with the \
                 messages as a list"
            }
            Self::Preference(fault) => fault.hint(),
            Self::Template(TemplateError::Missing) => NO_TEMPLATE_HINT,
            Self::WrongType {
                expected: "a string",
                found,
                ..
            } if found == "null" => "give it text, or remove the row",
            Self::WrongType {
                expected: WHOLE_CHAT,
                ..
            } => "name the column with the prompt in `columns`",
            Self::WrongType {
                expected: TEXT_FOR_TEMPLATE,
                ..
            } => "give a chat template, which reads `messages`, or put it into the model directory",
            Self::WrongType {
                expected: "a string",
                ..
            } => "only text can be trained on; a `template` can render other types",
            Self::Template(TemplateError::Ambiguous { .. }) => {
                "mark the assistant's text in the chat template with \
                 {% generation %}...{% endgeneration %}, or set train_on_prompt: true"
            }
            Self::Template(TemplateError::PrintsNull) => {
                "print another value, for example {{ column or \"\" }}, or remove the row"
            }
            Self::Template(TemplateError::TooManySteps(_) | TemplateError::TooLong(_)) => {
                "look for loops over ranges and for text that grows from loop to loop, or split the row"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// `12 of 60 rows of NAME have …, the first at PLACE; 3 have …, the first at PLACE`.
fn faulty(
    dataset: &str,
    what: &str,
    all: usize,
    faults: &[(PreferenceFault, usize, Location)],
) -> String {
    let faults = faults
        .iter()
        .enumerate()
        .map(|(index, (fault, rows, first))| {
            let of = match index {
                0 => format!(" of {all} {what} of `{dataset}`"),
                _ => String::new(),
            };
            let have = if *rows == 1 { "has" } else { "have" };
            format!("{rows}{of} {have} {fault}, the first at {first}")
        });
    faults.collect::<Vec<_>>().join("; ")
}

/// The decoder's error, in words.
fn archive_problem(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => "it ends early".to_owned(),
        _ => source.to_string(),
    }
}

/// True if the path was written as a URL: `https://…` has become a path below a directory `https:`.
fn is_url(path: &Path) -> bool {
    let mut folders = path.parent().into_iter().flatten();
    folders.any(|folder| folder.len() > 2 && folder.as_encoded_bytes().ends_with(b":"))
}

/// True if a file has one row per line, by its name.
fn has_lines(path: &Path) -> bool {
    matches!(extension(path).as_deref(), Some("jsonl" | "ndjson"))
}

/// A delimiter's name in a sentence.
fn delimiter(delimiter: char) -> String {
    match delimiter {
        '\t' => "a tab".to_owned(),
        other => format!("`{other}`"),
    }
}

/// `:column`, if there is one.
fn suffix(column: Option<u64>) -> String {
    column.map_or_else(String::new, |column| format!(":{column}"))
}

/// `a`, `b`, `c`, cut after twenty names.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 20;
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown = names.iter().take(SHOWN).map(|name| format!("`{name}`"));
    let rest = (names.len() > SHOWN).then(|| "…".to_owned());
    shown.chain(rest).collect::<Vec<_>>().join(", ")
}
