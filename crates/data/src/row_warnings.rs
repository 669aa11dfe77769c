//! Warnings about rows, independent of their tokens.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    error::{DataError, RowError},
    message::Message,
    preference::{Completions, Faults, PreferenceColumns, PreferenceFault},
    render::{Renderer, RowText, Source},
    row::{Row, SYSTEM},
    warning::Warning,
};

/// Roles that chat templates know, and other common ones.
pub(crate) const ROLES: [&str; 7] = [
    "system",
    "user",
    "assistant",
    "tool",
    "developer",
    "function",
    "ipython",
];

/// Columns that other programs train on in rows of prompts, instructions or chats. Other columns, such as ids, are
/// usually ignored on purpose.
const TRAINED_ELSEWHERE: [&str; 7] = [
    "system",
    "system_prompt",
    "history",
    "context",
    "input",
    "tools",
    "images",
];

/// Those that chats use.
const OF_CHATS: [&str; 2] = [SYSTEM, "tools"];

/// The facts of a row that warnings count.
#[derive(Debug)]
pub(crate) struct CheckedRow {
    row: Row,
    text: Result<RowText, PreferenceFault>,
    /// Per column of [`TRAINED_ELSEWHERE`], whether it has content.
    filled: [bool; TRAINED_ELSEWHERE.len()],
}

impl CheckedRow {
    /// Renders a row, so that an invalid one is found before training.
    pub(crate) fn new(row: Row, renderer: &Renderer) -> Result<Self, DataError> {
        let text = match renderer.render(&row) {
            Ok(text) => Ok(text),
            Err(RowError::Preference(fault)) => Err(fault),
            Err(problem) => return Err(row.error(problem)),
        };
        let is_chat = matches!(text, Ok(RowText::Preference(Completions::Chat { .. })));
        let is_used = |column| is_chat && OF_CHATS.contains(&column);
        let filled = TRAINED_ELSEWHERE.map(|column| row.has_content(column) && !is_used(column));
        Ok(Self { row, text, filled })
    }
}

/// Counts of what warnings report of the rows of a split.
#[derive(Debug, Default)]
pub(crate) struct RowWarnings {
    pub(crate) rows: usize,
    first_row: Option<Row>,
    /// True if another row has other columns or values. Unknown if its text differs.
    differs: bool,
    /// True if a row has the renderer's optional column.
    has_optional: bool,
    /// Per column of [`TRAINED_ELSEWHERE`], the number of rows with content there.
    filled: [usize; TRAINED_ELSEWHERE.len()],
    /// Rows whose target has no text.
    pub(crate) empty: usize,
    /// Messages of roles that templates do not know and that are not trained on, by role.
    roles: BTreeMap<String, usize>,
    /// The text or prompt of the first row, unless it is a chat.
    first: Option<Arc<str>>,
    /// True if another row has another text.
    varies: bool,
    /// Rows whose completion is rated, and those with a good one.
    rated: [usize; 2],
    faults: Faults,
}

impl RowWarnings {
    pub(crate) fn count(&mut self, checked: CheckedRow, renderer: &Renderer) {
        let CheckedRow { row, text, filled } = checked;
        self.rows += 1;
        let optional = renderer.optional_column();
        self.has_optional =
            self.has_optional || optional.is_some_and(|column| row.get(column).is_some());
        for (count, is_filled) in self.filled.iter_mut().zip(filled) {
            *count += usize::from(is_filled);
        }
        let text = match text {
            Ok(text) => text,
            Err(fault) => {
                self.faults.count(&fault, &row.location);
                return;
            }
        };
        if let RowText::Text(text)
        | RowText::PromptCompletion { prompt: text, .. }
        | RowText::Preference(Completions::Text { prompt: text, .. })
        | RowText::Both([text, _]) = &text
        {
            let first = self.first.get_or_insert_with(|| text.clone());
            self.varies |= first != text;
        }
        let first_row = self.first_row.get_or_insert_with(|| row.clone());
        self.differs = self.differs || !self.varies && first_row.columns != row.columns;
        let is_empty = match &text {
            RowText::PromptCompletion { completion, .. } => completion.trim().is_empty(),
            RowText::Text(text) => text.trim().is_empty(),
            RowText::Both(texts) => texts.iter().all(|text| text.trim().is_empty()),
            RowText::Chat(conversation) => {
                let messages = &conversation.messages;
                self.count_roles(messages);
                messages
                    .iter()
                    .any(|message| message.is_trained() && message.says_nothing())
            }
            RowText::Preference(completions) => {
                if let Completions::Chat { prompt, .. } = completions {
                    self.count_roles(&prompt.messages);
                }
                if let Some(is_good) = completions.rating() {
                    self.rated[usize::from(is_good)] += 1;
                }
                false
            }
        };
        self.empty += usize::from(is_empty);
    }

    fn count_roles(&mut self, messages: &[Message]) {
        for message in messages {
            if !message.is_trained() && !ROLES.contains(&message.role()) {
                *self.roles.entry(message.role().to_owned()).or_default() += 1;
            }
        }
    }

    /// The error if rows with preferences cannot be used; `what` calls the rows.
    pub(crate) fn refusal(&self, dataset: &str, what: &str) -> Option<DataError> {
        self.faults.refusal(dataset, what, self.rows)
    }

    /// The error if no row has the renderer's optional column.
    pub(crate) fn missing_column(&self, renderer: &Renderer) -> Option<DataError> {
        let (column, first) = (renderer.optional_column()?, self.first_row.as_ref()?);
        let (column, available) = (column.to_owned(), first.names());
        (!self.has_optional).then(|| first.error(RowError::MissingColumn { column, available }))
    }

    /// As warnings; `about` names the rows.
    pub(crate) fn warnings(&self, about: &str, renderer: &Renderer) -> Vec<Warning> {
        let rows = self.rows;
        let what = match renderer {
            Renderer::Text(_) | Renderer::Both(..) => "are empty",
            Renderer::PromptCompletion { .. } => "have an empty completion",
            Renderer::Chat { .. } | Renderer::Preference(_) => "have an empty target message",
        };
        let empty = (self.empty > 0).then(|| {
            let hint = "they train only the end of text; remove them if that is unintended";
            Warning::new(about, format!("{} of {rows} rows {what}", self.empty), hint)
        });
        let unknown = self.roles.iter().map(|(role, count)| {
            let message = format!(
                "{count} messages have the role `{role}`, which is not trained and unknown to chat \
                 templates"
            );
            Warning::new(
                about,
                message,
                "use the roles system, user, assistant and tool",
            )
        });
        let one_sided = match self.rated {
            [0, rated] if rated > 0 => Some("true"),
            [rated, 0] if rated > 0 => Some("false"),
            _ => None,
        };
        let one_sided = one_sided.map(|label| {
            let message = format!("all {rows} rows have the label {label}");
            Warning::new(
                about,
                message,
                "KTO compares good completions with bad ones",
            )
        });
        empty.into_iter().chain(one_sided).chain(unknown).collect()
    }

    /// A template that prints no column, or has one as Python's `format` would print it.
    pub(crate) fn template_warning(&self, about: &str, renderer: &Renderer) -> Option<Warning> {
        let (template, what) = match renderer {
            Renderer::Text(Source::Template(template)) | Renderer::Both(template, _) => {
                (template, "text")
            }
            Renderer::PromptCompletion {
                prompt: Source::Template(template),
                ..
            }
            | Renderer::Preference(PreferenceColumns {
                prompt: Some(Source::Template(template)),
                ..
            }) => (template, "prompt"),
            _ => return None,
        };
        let same = (!self.varies && self.differs).then(|| {
            let rows = self.rows;
            format!("the template renders the same {what} for all {rows} rows")
        });
        let columns = self.first_row.as_ref().map(Row::names).unwrap_or_default();
        let literal = columns.iter().find(|column| template.spells(column));
        let literal = literal.map(|column| {
            format!(
                "`{{{column}}}` in the template is literal text, `{{{{ {column} }}}}` prints the \
                 column"
            )
        });
        let message = match (same, literal) {
            (Some(same), Some(literal)) => format!("{same}: {literal}"),
            (same, literal) => same.or(literal)?,
        };
        let hint = "Jinja prints a column with two braces on each side";
        Some(Warning::new(about, message, hint))
    }

    /// Warnings of columns that were probably meant to be trained on and are not.
    pub(crate) fn unused_columns(&self, about: &str, renderer: &Renderer) -> Vec<Warning> {
        let used = renderer.columns();
        let unused = TRAINED_ELSEWHERE.into_iter().zip(self.filled);
        let unused = unused.filter(|(column, filled)| {
            *filled > 0 && used.as_ref().is_some_and(|used| !used.contains(column))
        });
        let warn = |(column, filled)| {
            let message = format!(
                "{filled} of {} rows have a value in column `{column}`, which is not trained",
                self.rows
            );
            let hint = "print it with a `template`, or put it into the prompt or the messages";
            Warning::new(about, message, hint)
        };
        unused.map(warn).collect()
    }
}
