//! Rows with preferences: a better and a worse completion of a prompt, or one that is rated.

use std::{collections::BTreeMap, sync::Arc};

use minijinja::{Value, value::ValueKind};

use crate::{
    chat::ChatTemplate,
    error::{DataError, RowError},
    message::{Conversation, Message, as_messages},
    render::Source,
    row::{Location, Row, wrong_type},
};

/// Expected of completions that no prompt precedes.
pub(crate) const WHOLE_CHAT: &str = "a whole chat, since no column has the prompt";
/// Expected of completions of a rendered prompt.
pub(crate) const TEXT_FOR_TEMPLATE: &str = "text, since the template renders only the prompt";

/// Characters of a label that a message shows.
const MOST_SHOWN: usize = 40;

/// A mistake in a row with preferences, of which all rows are counted before they are refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum PreferenceFault {
    /// The completions are equal.
    #[error("equal completions in columns `{chosen}` and `{rejected}`")]
    Equal {
        /// Column of the better completion.
        chosen: String,
        /// Column of the worse completion.
        rejected: String,
    },
    /// A template renders the same text for both values of this variable.
    #[error("the same text whether `{0}` is true or false")]
    SameText(&'static str),
    /// A completion is missing, or has no text.
    #[error("no text in column `{0}`")]
    Empty(String),
    /// A label is no boolean.
    #[error("neither true nor false in column `{column}`, but for example {found}")]
    Label {
        /// The column.
        column: String,
        /// The label of the first row.
        found: String,
    },
    /// A completion begins with a message of another role.
    #[error("another role than `assistant` where the answer begins in column `{0}`")]
    NoAnswer(String),
    /// A whole chat has no message before its answer.
    #[error("no message before the answer in column `{0}`")]
    NoPrompt(String),
    /// Whole chats begin with other messages.
    #[error("other first messages in column `{chosen}` than in `{rejected}`")]
    OtherPrompts {
        /// Column of the better chat.
        chosen: String,
        /// Column of the worse chat.
        rejected: String,
    },
    /// The completions are equal up to this many tokens.
    #[error("the same tokens on both sides within max_seq_len = {0}")]
    SameTokens(usize),
    /// No token of a completion is within this many tokens.
    #[error("no token of a completion within max_seq_len = {0}")]
    CutOff(usize),
}

impl PreferenceFault {
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::Equal { .. } | Self::SameText(_) => {
                "equal completions teach nothing: remove these rows"
            }
            Self::Empty(_) => {
                "give it text, or remove these rows; `columns` names the columns to read"
            }
            Self::Label { .. } => {
                "write `true` for a good completion and `false` for a bad one, as in TRL: 1 and 0, or yes and no, \
                 are not labels"
            }
            Self::NoAnswer(_) => {
                "completions of a pair need the same messages before the answer, and a chat that is rated ends \
                 with one"
            }
            Self::NoPrompt(_) | Self::OtherPrompts { .. } => {
                "without a column `prompt`, completions are whole chats, and a pair begins with the same messages; \
                 `columns` names another column with the prompt"
            }
            Self::SameTokens(_) | Self::CutOff(_) => {
                "raise train.max_seq_len, or remove these rows"
            }
        }
    }
}

/// Counts of faulty rows, with the first place of each fault.
#[derive(Debug, Default)]
pub(crate) struct Faults(BTreeMap<PreferenceFault, (usize, Location)>);

impl Faults {
    pub(crate) fn count(&mut self, fault: &PreferenceFault, location: &Location) {
        use PreferenceFault::Label;
        let first = || (0, location.clone());
        let is_same = |known: &&PreferenceFault| match (known, fault) {
            (Label { column, .. }, Label { column: other, .. }) => column == other,
            (known, fault) => *known == fault,
        };
        let known = self.0.keys().find(is_same).unwrap_or(fault).clone();
        self.0.entry(known).or_insert_with(first).0 += 1;
    }

    /// Number of faulty rows.
    pub(crate) fn rows(&self) -> usize {
        self.0.values().map(|(rows, _)| rows).sum()
    }

    /// The error if there are any, among `rows` that are called `what`.
    pub(crate) fn refusal(&self, dataset: &str, what: &str, rows: usize) -> Option<DataError> {
        let faults = self.0.iter();
        let faults: Vec<_> = faults
            .map(|(fault, (rows, first))| (fault.clone(), *rows, first.clone()))
            .collect();
        (!faults.is_empty()).then(|| DataError::Preferences {
            dataset: dataset.to_owned(),
            what: what.to_owned(),
            rows,
            faults,
        })
    }
}

/// A prompt and its completions, each with whether it is preferred.
#[derive(Debug, Hash)]
pub(crate) enum Completions {
    Text {
        prompt: Arc<str>,
        completions: Vec<(Arc<str>, bool)>,
    },
    Chat {
        prompt: Conversation,
        completions: Vec<(Vec<Message>, bool)>,
    },
}

impl Completions {
    /// The label of the only completion; `None` of a pair.
    pub(crate) fn rating(&self) -> Option<bool> {
        match self {
            Self::Text { completions, .. } => match completions.as_slice() {
                [(_, is_good)] => Some(*is_good),
                _ => None,
            },
            Self::Chat { completions, .. } => match completions.as_slice() {
                [(_, is_good)] => Some(*is_good),
                _ => None,
            },
        }
    }
}

/// The columns of rows with preferences.
#[derive(Debug)]
pub(crate) struct PreferenceColumns {
    /// `None` if the completions are whole chats.
    pub(crate) prompt: Option<Source>,
    pub(crate) completions: CompletionColumns,
    /// Replaces the tokenizer's chat template, and makes texts messages.
    pub(crate) template: Option<Box<ChatTemplate>>,
}

#[derive(Debug)]
pub(crate) enum CompletionColumns {
    Pair { chosen: String, rejected: String },
    Rated { completion: String, label: String },
}

/// A value of a column.
enum Part {
    Text(Arc<str>),
    Messages(Vec<Message>),
}

impl Part {
    /// Text, a message or a list of messages; `None` if there is nothing.
    fn parse(row: &Row, column: &str) -> Result<Option<Self>, RowError> {
        let value = row.get(column).unwrap_or_default();
        Ok(match value.kind() {
            ValueKind::Undefined | ValueKind::None => None,
            ValueKind::String => value.to_str().map(Self::Text),
            ValueKind::Map => {
                let list = Value::from(vec![value]);
                Some(Self::Messages(as_messages(&list, column)?))
            }
            ValueKind::Seq if value.len() == Some(0) => None,
            ValueKind::Seq => Some(Self::Messages(as_messages(&value, column)?)),
            _ => return Err(wrong_type(column, "text or messages", &value)),
        })
    }

    fn has_text(&self) -> bool {
        match self {
            Self::Text(text) => !text.trim().is_empty(),
            Self::Messages(messages) => !messages.iter().all(Message::says_nothing),
        }
    }

    fn into_messages(self, role: &str) -> Vec<Message> {
        match self {
            Self::Text(text) => vec![Message::new(role, &*text)],
            Self::Messages(messages) => messages,
        }
    }
}

impl PreferenceColumns {
    /// The columns with completions.
    pub(crate) fn completion_columns(&self) -> Vec<&str> {
        match &self.completions {
            CompletionColumns::Pair { chosen, rejected } => vec![chosen, rejected],
            CompletionColumns::Rated { completion, .. } => vec![completion],
        }
    }

    /// The row's prompt and completions.
    ///
    /// # Errors
    /// [`RowError::Preference`], and values of other types.
    pub(crate) fn parse(&self, row: &Row) -> Result<Completions, RowError> {
        let columns = self.completion_columns();
        let parse = |column: &&str| {
            let part = Part::parse(row, column)?.filter(Part::has_text);
            part.ok_or_else(|| PreferenceFault::Empty((*column).to_owned()).into())
        };
        let parts: Vec<Part> = columns.iter().map(parse).collect::<Result<_, RowError>>()?;
        let preferred = match &self.completions {
            CompletionColumns::Pair { .. } => vec![true, false],
            CompletionColumns::Rated { label, .. } => vec![is_good(row, label)?],
        };
        let prompt = match &self.prompt {
            Some(Source::Column(column)) => match Part::parse(row, column)? {
                Some(part) => Some(part),
                None => row.text(column).map(Part::Text).map(Some)?,
            },
            Some(source) => Some(Part::Text(source.render(row)?)),
            None => None,
        };
        let is_text = |part: &Part| matches!(part, Part::Text(_));
        if let Some(text) = parts.iter().position(is_text).filter(|_| prompt.is_none()) {
            let value = row.get(columns[text]).unwrap_or_default();
            return Err(wrong_type(columns[text], WHOLE_CHAT, &value));
        }
        let are_texts = parts.iter().chain(&prompt).all(is_text);
        match prompt {
            Some(Part::Text(prompt)) if are_texts && self.template.is_none() => {
                let texts = parts.into_iter().filter_map(|part| match part {
                    Part::Text(text) => Some(text),
                    Part::Messages(_) => None,
                });
                let texts: Vec<_> = texts.collect();
                self.refuse_equal(&texts)?;
                let completions = texts.into_iter().zip(preferred).collect();
                Ok(Completions::Text {
                    prompt,
                    completions,
                })
            }
            prompt => {
                let sides = parts
                    .into_iter()
                    .map(|part| part.into_messages("assistant"));
                let (prompt, sides) = self.chat(row, prompt, sides.collect())?;
                let completions = sides.into_iter().zip(preferred).collect();
                Ok(Completions::Chat {
                    prompt,
                    completions,
                })
            }
        }
    }

    /// The prompt of a chat, and the messages of its completions.
    fn chat(
        &self,
        row: &Row,
        prompt: Option<Part>,
        mut sides: Vec<Vec<Message>>,
    ) -> Result<(Conversation, Vec<Vec<Message>>), RowError> {
        let columns = self.completion_columns();
        self.refuse_equal(&sides)?;
        let asks = |side: &Vec<Message>| !side[0].is_assistant();
        let are_whole = prompt.is_none() || sides.iter().all(asks);
        let mut messages = match (prompt, &self.prompt) {
            (Some(Part::Messages(messages)), _) => messages,
            (Some(Part::Text(_)), Some(Source::Template(_))) => {
                let value = row.get(columns[0]).unwrap_or_default();
                return Err(wrong_type(columns[0], TEXT_FOR_TEMPLATE, &value));
            }
            // Whole chats contain it.
            (Some(Part::Text(_)), _) if are_whole => Vec::new(),
            (Some(Part::Text(text)), source) => {
                let asked = source.as_ref().map(|source| source.asked(row));
                let asked = asked.transpose()?.flatten().unwrap_or(text);
                vec![Message::new("user", &*asked)]
            }
            (None, _) => Vec::new(),
        };
        if are_whole {
            let shared = if let [one, other] = sides.as_slice() {
                let pairs = one.iter().zip(other);
                pairs.take_while(|(one, other)| one == other).count()
            } else {
                let asked = sides[0].iter().rposition(|message| !message.is_assistant());
                asked.map_or(0, |last| last + 1)
            };
            let mut whole = sides[0][..shared].to_vec();
            if !whole.starts_with(&messages) {
                whole.splice(..0, messages);
            }
            messages = whole;
            for side in &mut sides {
                side.drain(..shared);
            }
        }
        if messages.is_empty() {
            let fault = match &self.completions {
                CompletionColumns::Pair { chosen, rejected } => PreferenceFault::OtherPrompts {
                    chosen: chosen.clone(),
                    rejected: rejected.clone(),
                },
                CompletionColumns::Rated { completion, .. } => {
                    PreferenceFault::NoPrompt(completion.clone())
                }
            };
            return Err(fault.into());
        }
        for (column, side) in columns.into_iter().zip(&sides) {
            let fault = match side.first() {
                Some(first) if !first.is_assistant() => PreferenceFault::NoAnswer(column.into()),
                Some(_) if !side.iter().all(Message::says_nothing) => {
                    refuse_flags(column, side)?;
                    continue;
                }
                _ if are_whole => PreferenceFault::NoAnswer(column.into()),
                _ => PreferenceFault::Empty(column.into()),
            };
            return Err(fault.into());
        }
        Ok((Conversation::new(messages, row, false)?, sides))
    }

    fn refuse_equal<T: PartialEq>(&self, sides: &[T]) -> Result<(), RowError> {
        match (&self.completions, sides) {
            (CompletionColumns::Pair { chosen, rejected }, [one, other]) if one == other => {
                let (chosen, rejected) = (chosen.clone(), rejected.clone());
                Err(PreferenceFault::Equal { chosen, rejected }.into())
            }
            _ => Ok(()),
        }
    }
}

/// The chat that a row's prompt is, if its `prompt` or its completions, `chosen` and `rejected`, are messages.
pub(crate) fn prompt(row: &Row, prompt: &str) -> Result<Option<Conversation>, RowError> {
    let is_chat = |column: &str| {
        let kind = row.get(column).map(|value| value.kind());
        matches!(kind, Some(ValueKind::Seq | ValueKind::Map))
    };
    let pair @ [chosen, rejected] = ["chosen", "rejected"];
    if !pair.into_iter().all(is_chat) {
        let part = Part::parse(row, prompt)?.filter(|_| is_chat(prompt));
        let chat = part.map(|part| Conversation::new(part.into_messages("user"), row, false));
        return chat.transpose();
    }
    let has_prompt = row.get(prompt).is_some_and(|value| !value.is_none());
    let columns = PreferenceColumns {
        prompt: has_prompt.then(|| Source::Column(prompt.to_owned())),
        completions: CompletionColumns::Pair {
            chosen: chosen.to_owned(),
            rejected: rejected.to_owned(),
        },
        template: None,
    };
    Ok(match columns.parse(row)? {
        Completions::Chat { prompt, .. } => Some(prompt),
        Completions::Text { .. } => None,
    })
}

/// Refuses messages that their row excludes from training: losses take whole completions.
fn refuse_flags(column: &str, messages: &[Message]) -> Result<(), RowError> {
    let excluded = messages
        .iter()
        .position(|message| message.has_train_flag() && !message.is_trained());
    excluded.map_or(Ok(()), |at| {
        Err(RowError::Message {
            column: column.to_owned(),
            message: at + 1,
            reason: "`train` or `weight` excludes it, but preferences are of whole completions"
                .to_owned(),
        })
    })
}

/// The row's label: a boolean, or its name, since a CSV cell is text.
fn is_good(row: &Row, column: &str) -> Result<bool, RowError> {
    let value = row.get(column).unwrap_or_default();
    label(&value).ok_or_else(|| {
        let shown: String = format!("{value:?}").chars().take(MOST_SHOWN).collect();
        let is_absent = matches!(value.kind(), ValueKind::Undefined | ValueKind::None);
        let fault = PreferenceFault::Label {
            column: column.to_owned(),
            found: if is_absent {
                "nothing".to_owned()
            } else {
                format!("`{shown}`")
            },
        };
        fault.into()
    })
}

/// The boolean that a label is.
pub(crate) fn label(value: &Value) -> Option<bool> {
    match value.kind() {
        ValueKind::Bool => Some(value.is_true()),
        _ => match value.as_str()? {
            "true" | "True" | "TRUE" => Some(true),
            "false" | "False" | "FALSE" => Some(false),
            _ => None,
        },
    }
}
