//! Determines the columns of a table: from the configuration or from its first rows.

use std::{fmt, path::Path};

use loraloom_config::ColumnMap;
use minijinja::value::ValueKind;

use crate::{error::DataError, row::Row};

/// The format of a dataset's rows, worth printing: `prompt/completion (prompt, completion)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedFormat {
    /// The columns; `None` if a template renders whole rows.
    pub columns: Option<ColumnMap>,
    /// A configured template renders the prompt, the chat or the whole row.
    pub template: bool,
}

impl DetectedFormat {
    /// Rows looked at to tell a file's format.
    pub(crate) const ROWS_LOOKED_AT: usize = 16;

    /// Detects the columns of a file with these first rows: the first format whose values they fit,
    /// otherwise the first format whose columns some row has. Later rows that do not fit are errors of their own.
    ///
    /// # Errors
    /// [`DataError::UnknownFormat`] if none of the first rows has the columns of a format.
    pub(crate) fn detect(path: &Path, rows: &[Row]) -> Result<ColumnMap, DataError> {
        let candidates = candidates();
        let by_columns = |row| {
            let mut fitting = candidates.iter().filter(|format| fits(format, row));
            let mut having = candidates.iter().filter(|format| has_columns(format, row));
            fitting.next().or_else(|| having.next())
        };
        candidates
            .iter()
            .find(|format| rows.iter().all(|row| fits(format, row)))
            .or_else(|| rows.iter().find_map(by_columns))
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

/// The setting for these columns, if they are those of a format except for case and white space.
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

/// The column that equals `wanted` except for case and white space around it.
pub(crate) fn similar_name<'a>(wanted: &str, columns: &'a [String]) -> Option<&'a String> {
    let plain = |name: &str| name.trim().to_lowercase();
    columns.iter().find(|column| plain(column) == plain(wanted))
}

/// The name in YAML, quoted if necessary.
fn as_yaml(name: &str) -> String {
    let is_plain = |character: char| character.is_alphabetic() || character == '_';
    if name.chars().all(is_plain) {
        name.to_owned()
    } else {
        format!("{name:?}")
    }
}

fn fits(format: &ColumnMap, row: &Row) -> bool {
    let kind = match format {
        ColumnMap::Messages { .. } | ColumnMap::Conversations { .. } => ValueKind::Seq,
        _ => ValueKind::String,
    };
    let has = |column| row.get(column).is_some_and(|value| value.kind() == kind);
    required(format).iter().all(|(_, column)| has(column))
}

impl fmt::Display for DetectedFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(columns) = &self.columns else {
            return formatter.write_str("text (template)");
        };
        let (name, prompt, rest): (_, Vec<&str>, Option<&str>) = match columns {
            ColumnMap::Messages { messages } => ("messages", Vec::new(), Some(messages)),
            ColumnMap::Conversations { conversations } => {
                ("conversations", Vec::new(), Some(conversations))
            }
            ColumnMap::PromptCompletion { prompt, completion } => {
                ("prompt/completion", vec![prompt], Some(completion))
            }
            ColumnMap::Instruction {
                instruction,
                input,
                output,
            } => {
                let prompt = [Some(instruction), input.as_ref()];
                let prompt = prompt.into_iter().flatten().map(String::as_str);
                ("instruction", prompt.collect(), Some(output))
            }
            ColumnMap::Text { text } => ("text", vec![text], None),
        };
        // A template replaces the columns of the prompt.
        let mut shown = if self.template { Vec::new() } else { prompt };
        shown.extend(rest);
        if self.template {
            shown.push("template");
        }
        write!(formatter, "{name} ({})", shown.join(", "))
    }
}
