//! Determines the columns of a table: from the configuration or from its first rows.

use std::{fmt, iter, path::Path};

use loraloom_config::{ColumnMap, Preference};
use minijinja::value::ValueKind;

use crate::{error::DataError, preference::label, row::Row};

/// The format of a dataset's rows, worth printing: `prompt/completion (prompt, completion)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedFormat {
    /// The columns; `None` if a template renders whole rows.
    pub columns: Option<ColumnMap>,
    /// A configured template renders the prompt, the chat or the whole row.
    pub template: bool,
    /// The roles of the two samples of a row, if a template renders whole rows twice.
    pub both: Option<Preference>,
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
            let rated = || candidates.iter().filter(|format| is_rated(format, rows));
            let mut fitting = rated().filter(|format| fits(format, row));
            let mut having = rated().filter(|format| has_columns(format, row));
            fitting.next().or_else(|| having.next())
        };
        // A row without a rating among others is a mistake, and none of another format.
        let suits = |format: &&ColumnMap| match rating(format) {
            Some(_) => rows.iter().any(|row| fits(format, row)),
            None => rows.iter().all(|row| fits(format, row)),
        };
        candidates
            .iter()
            .find(|format| is_rated(format, rows) && suits(format))
            .or_else(|| rows.iter().find_map(by_columns))
            .cloned()
            .ok_or_else(|| {
                let columns = rows.first().map(Row::names).unwrap_or_default();
                DataError::UnknownFormat {
                    path: path.to_owned(),
                    similar: similar(&columns),
                    left_out: String::new(),
                    columns,
                }
            })
    }
}

/// The formats that are recognised, in this order: those with preferences first, since their rows may have the columns
/// of others as well.
fn candidates() -> Vec<ColumnMap> {
    let mut formats = preferences();
    formats.extend([
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
    ]);
    formats
}

fn preferences() -> Vec<ColumnMap> {
    let mut formats = Vec::new();
    // As TRL and LLaMA-Factory, then as Axolotl's chatml.argilla, name them.
    for (chosen, rejected) in [
        ("chosen", "rejected"),
        ("chosen_response", "rejected_response"),
    ] {
        let (chosen, rejected) = (String::from(chosen), String::from(rejected));
        let pairs = |prompt: Option<&str>| ColumnMap::Pairs {
            prompt: prompt.map(Into::into),
            chosen: chosen.clone(),
            rejected: rejected.clone(),
        };
        let instruction = |instruction: &str, input: Option<&str>| ColumnMap::InstructionPairs {
            instruction: instruction.into(),
            input: input.map(Into::into),
            chosen: chosen.clone(),
            rejected: rejected.clone(),
        };
        formats.extend([
            pairs(Some("prompt")),
            pairs(Some("conversations")),
            instruction("instruction", Some("input")),
            // Axolotl's chatml.intel.
            instruction("question", None),
            pairs(None),
            // Axolotl's chat_template.default. Beside whole chats `messages` is one of them.
            pairs(Some("messages")),
        ]);
    }
    for label in ["label", KTO_TAG] {
        let messages = |messages: &str| ColumnMap::RatedMessages {
            messages: messages.into(),
            label: label.into(),
        };
        formats.extend([
            messages("messages"),
            messages("conversations"),
            ColumnMap::Rated {
                prompt: "prompt".into(),
                completion: "completion".into(),
                label: label.into(),
            },
            ColumnMap::RatedInstruction {
                instruction: "instruction".into(),
                input: Some("input".into()),
                output: "output".into(),
                label: label.into(),
            },
        ]);
    }
    formats
}

/// LLaMA-Factory's name of labels. No other rows have it, but many have a `label`.
const KTO_TAG: &str = "kto_tag";

/// The column with the rating of a row's completion.
fn rating(format: &ColumnMap) -> Option<&str> {
    match format {
        ColumnMap::Rated { label, .. }
        | ColumnMap::RatedInstruction { label, .. }
        | ColumnMap::RatedMessages { label, .. } => Some(label),
        _ => None,
    }
}

/// True unless the format's label is the class of a row rather than a rating.
fn is_rated(format: &ColumnMap, rows: &[Row]) -> bool {
    let Some(column) = rating(format) else {
        return true;
    };
    let is_boolean = |row: &Row| row.get(column).is_some_and(|value| label(&value).is_some());
    column == KTO_TAG || rows.iter().any(is_boolean)
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
        ColumnMap::Pairs {
            prompt,
            chosen,
            rejected,
        } => {
            let prompt = prompt.iter().map(|prompt| ("prompt", prompt.as_str()));
            let sides = [("chosen", chosen.as_str()), ("rejected", rejected)];
            prompt.chain(sides).collect()
        }
        ColumnMap::InstructionPairs {
            instruction,
            chosen,
            rejected,
            ..
        } => vec![
            ("instruction", instruction),
            ("chosen", chosen),
            ("rejected", rejected),
        ],
        ColumnMap::Rated {
            prompt,
            completion,
            label,
        } => vec![
            ("prompt", prompt),
            ("completion", completion),
            ("label", label),
        ],
        ColumnMap::RatedInstruction {
            instruction,
            output,
            label,
            ..
        } => vec![
            ("instruction", instruction),
            ("output", output),
            ("label", label),
        ],
        ColumnMap::RatedMessages { messages, label } => {
            vec![("messages", messages), ("label", label)]
        }
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
    let kinds: &[ValueKind] = match format {
        ColumnMap::Messages { .. }
        | ColumnMap::Conversations { .. }
        | ColumnMap::RatedMessages { .. }
        | ColumnMap::Pairs { prompt: None, .. } => &[ValueKind::Seq],
        ColumnMap::Pairs { .. } | ColumnMap::InstructionPairs { .. } | ColumnMap::Rated { .. } => {
            &[ValueKind::String, ValueKind::Seq, ValueKind::Map]
        }
        _ => &[ValueKind::String],
    };
    let fits = |(key, column): &(&str, &str)| {
        let value = row.get(column);
        value.is_some_and(|value| *key == "label" || kinds.contains(&value.kind()))
    };
    required(format).iter().all(fits)
}

impl DetectedFormat {
    /// Kind of the preferences in its rows, if they have any.
    pub fn preference(&self) -> Option<Preference> {
        let Some(columns) = &self.columns else {
            return self.both;
        };
        match columns {
            ColumnMap::Pairs { .. } | ColumnMap::InstructionPairs { .. } => Some(Preference::Pairs),
            ColumnMap::Rated { .. }
            | ColumnMap::RatedInstruction { .. }
            | ColumnMap::RatedMessages { .. } => Some(Preference::Rated),
            _ => None,
        }
    }
}

/// The columns of a prompt.
fn instruction<'a>(instruction: &'a str, input: Option<&'a String>) -> Vec<&'a str> {
    let input = input.map(String::as_str);
    iter::once(instruction).chain(input).collect()
}

impl fmt::Display for DetectedFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(columns) = &self.columns else {
            return formatter.write_str(match self.both {
                None => "text (template)",
                Some(Preference::Paraphrases) => "paraphrases (template)",
                Some(_) => "pairs (template)",
            });
        };
        let (name, prompt, rest): (_, Vec<&str>, Vec<&str>) = match columns {
            ColumnMap::Messages { messages } => ("messages", Vec::new(), vec![messages]),
            ColumnMap::Conversations { conversations } => {
                ("conversations", Vec::new(), vec![conversations])
            }
            ColumnMap::PromptCompletion { prompt, completion } => {
                ("prompt/completion", vec![prompt], vec![completion])
            }
            ColumnMap::Instruction {
                instruction: asked,
                input,
                output,
            } => (
                "instruction",
                instruction(asked, input.as_ref()),
                vec![output],
            ),
            ColumnMap::Text { text } => ("text", vec![text], Vec::new()),
            ColumnMap::Pairs {
                prompt,
                chosen,
                rejected,
            } => {
                let prompt = prompt.iter().map(String::as_str);
                ("pairs", prompt.collect(), vec![chosen, rejected])
            }
            ColumnMap::InstructionPairs {
                instruction: asked,
                input,
                chosen,
                rejected,
            } => (
                "instruction pairs",
                instruction(asked, input.as_ref()),
                vec![chosen, rejected],
            ),
            ColumnMap::Rated {
                prompt,
                completion,
                label,
            } => (
                "rated prompt/completion",
                vec![prompt],
                vec![completion, label],
            ),
            ColumnMap::RatedInstruction {
                instruction: asked,
                input,
                output,
                label,
            } => (
                "rated instruction",
                instruction(asked, input.as_ref()),
                vec![output, label],
            ),
            ColumnMap::RatedMessages { messages, label } => {
                ("rated messages", Vec::new(), vec![messages, label])
            }
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
