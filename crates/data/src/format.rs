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
    /// The columns of a file whose configuration names none.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownFormat`] if no format has all its columns in each of the first rows.
    pub(crate) fn detect(path: &Path, rows: &[Row]) -> Result<ColumnMap, DataError> {
        let first = &rows[..rows.len().min(ROWS_LOOKED_AT)];
        candidates()
            .into_iter()
            .find(|format| first.iter().all(|row| fits(format, row)))
            .ok_or_else(|| DataError::UnknownFormat {
                path: path.to_owned(),
                columns: rows.first().map(Row::names).unwrap_or_default(),
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
