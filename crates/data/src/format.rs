//! Which columns of a table hold what: told by the configuration or found in the first rows.

use std::{fmt, path::Path};

use loraloom_config::ColumnMap;
use minijinja::value::ValueKind;

use crate::{error::DataError, row::Row};

/// Rows looked at to tell a file's format.
const ROWS_LOOKED_AT: usize = 16;

/// The format of a dataset's rows, worth printing: `prompt/completion (prompt, completion)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedFormat {
    /// The columns; `None` if a template renders whole rows.
    pub columns: Option<ColumnMap>,
    /// The columns were found in the rows rather than configured.
    pub detected: bool,
    /// A configured template renders the prompt, the chat or the whole row.
    pub template: bool,
}

impl DetectedFormat {
    /// Detects the columns of a file without configured ones: those of a format that the first rows
    /// fit, otherwise of the first row that has all columns of a format, with any values. Later
    /// rows that do not fit are errors of their own.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownFormat`] if none of the first rows has the columns of a format.
    pub(crate) fn detect(path: &Path, rows: &[Row]) -> Result<ColumnMap, DataError> {
        let first = &rows[..rows.len().min(ROWS_LOOKED_AT)];
        let candidates = candidates();
        let find =
            |fits: &dyn Fn(&ColumnMap) -> bool| candidates.iter().find(|format| fits(format));
        let by_columns = |row| {
            find(&|format| fits(format, row)).or_else(|| find(&|format| has_columns(format, row)))
        };
        find(&|format| first.iter().all(|row| fits(format, row)))
            .or_else(|| first.iter().find_map(by_columns))
            .cloned()
            .ok_or_else(|| {
                let columns = rows.first().map(Row::names).unwrap_or_default();
                DataError::UnknownFormat {
                    path: path.to_owned(),
                    similar: similar(&columns),
                    columns,
                }
            })
    }
}

/// The formats that are recognised, in this order.
fn candidates() -> [ColumnMap; 5] {
    [
        ColumnMap::Messages {
            messages: "messages".into(),
        },
        ColumnMap::Conversations {
            conversations: "conversations".into(),
        },
        ColumnMap::PromptCompletion {
            prompt: "prompt".into(),
            completion: "completion".into(),
        },
        ColumnMap::Instruction {
            instruction: "instruction".into(),
            input: Some("input".into()),
            output: "output".into(),
        },
        ColumnMap::Text {
            text: "text".into(),
        },
    ]
}

/// The columns that every row has, by the names that the configuration gives them.
fn required(format: &ColumnMap) -> Vec<(&'static str, &str)> {
    match format {
        ColumnMap::Messages { messages } => vec![("messages", messages)],
        ColumnMap::Conversations { conversations } => vec![("conversations", conversations)],
        ColumnMap::PromptCompletion { prompt, completion } => {
            vec![("prompt", prompt), ("completion", completion)]
        }
        ColumnMap::Instruction {
            instruction,
            output,
            ..
        } => vec![("instruction", instruction), ("output", output)],
        ColumnMap::Text { text } => vec![("text", text)],
    }
}

fn has_columns(format: &ColumnMap, row: &Row) -> bool {
    required(format)
        .iter()
        .all(|(_, column)| row.get(column).is_some())
}

/// The setting that names these columns, if they are those of a format but for case and white space.
fn similar(columns: &[String]) -> Option<String> {
    candidates().iter().find_map(|format| {
        let pairs: Option<Vec<_>> = required(format)
            .into_iter()
            .map(|(key, wanted)| {
                similar_name(wanted, columns).map(|column| format!("{key}: {}", as_yaml(column)))
            })
            .collect();
        pairs.map(|pairs| format!("columns: {{{}}}", pairs.join(", ")))
    })
}

/// The column that is `wanted` but for case and white space around it.
pub(crate) fn similar_name<'a>(wanted: &str, columns: &'a [String]) -> Option<&'a String> {
    let plain = |name: &str| name.trim().to_lowercase();
    columns.iter().find(|column| plain(column) == plain(wanted))
}

/// The name as it is written in YAML, in quotes where it needs them.
fn as_yaml(name: &str) -> String {
    let is_plain = |character: char| character.is_alphabetic() || character == '_';
    if name.chars().all(is_plain) {
        name.to_owned()
    } else {
        format!("{name:?}")
    }
}

fn fits(format: &ColumnMap, row: &Row) -> bool {
    let has = |column: &str, kind| row.get(column).is_some_and(|value| value.kind() == kind);
    match format {
        ColumnMap::Messages { messages } => has(messages, ValueKind::Seq),
        ColumnMap::Conversations { conversations } => has(conversations, ValueKind::Seq),
        ColumnMap::PromptCompletion { prompt, completion } => {
            has(prompt, ValueKind::String) && has(completion, ValueKind::String)
        }
        ColumnMap::Instruction {
            instruction,
            output,
            ..
        } => has(instruction, ValueKind::String) && has(output, ValueKind::String),
        ColumnMap::Text { text } => has(text, ValueKind::String),
    }
}

impl fmt::Display for DetectedFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(columns) = &self.columns else {
            return formatter.write_str("text (template)");
        };
        match (columns, self.template) {
            (ColumnMap::Messages { messages }, _) => write!(formatter, "messages ({messages}")?,
            (ColumnMap::Conversations { conversations }, _) => {
                write!(formatter, "conversations ({conversations}")?;
            }
            (ColumnMap::PromptCompletion { prompt, completion }, false) => {
                write!(formatter, "prompt/completion ({prompt}, {completion}")?;
            }
            (ColumnMap::PromptCompletion { completion, .. }, true) => {
                write!(formatter, "prompt/completion ({completion}")?;
            }
            (
                ColumnMap::Instruction {
                    instruction,
                    input: Some(input),
                    output,
                },
                false,
            ) => {
                write!(formatter, "instruction ({instruction}, {input}, {output}")?;
            }
            (
                ColumnMap::Instruction {
                    instruction,
                    input: None,
                    output,
                },
                false,
            ) => {
                write!(formatter, "instruction ({instruction}, {output}")?;
            }
            (ColumnMap::Instruction { output, .. }, true) => {
                write!(formatter, "instruction ({output}")?;
            }
            (ColumnMap::Text { .. }, true) => return formatter.write_str("text (template)"),
            (ColumnMap::Text { text }, false) => write!(formatter, "text ({text}")?,
        }
        formatter.write_str(if self.template { ", template)" } else { ")" })
    }
}
