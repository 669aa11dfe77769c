//! Warnings about rows, independent of their tokens.

use std::collections::BTreeMap;

use crate::{
    render::{Renderer, RowText},
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

/// Counts of what is odd in the rows of a split.
#[derive(Debug, Default)]
pub(crate) struct Oddities {
    /// Rows whose target has no text.
    pub(crate) empty: usize,
    /// Messages of roles that templates do not know and that are not trained on, by role.
    roles: BTreeMap<String, usize>,
}

impl Oddities {
    pub(crate) fn count(&mut self, text: &RowText) {
        let is_empty = match text {
            RowText::PromptCompletion { completion, .. } => completion.trim().is_empty(),
            RowText::Text(text) => text.trim().is_empty(),
            RowText::Chat(conversation) => {
                let messages = &conversation.messages;
                for message in messages {
                    if !message.is_trained() && !ROLES.contains(&message.role()) {
                        *self.roles.entry(message.role().to_owned()).or_default() += 1;
                    }
                }
                messages
                    .iter()
                    .any(|message| message.is_trained() && message.says_nothing())
            }
        };
        self.empty += usize::from(is_empty);
    }

    /// In words; `about` says which rows they are.
    pub(crate) fn warnings(&self, about: &str, rows: usize, renderer: &Renderer) -> Vec<Warning> {
        let what = match renderer {
            Renderer::Text(_) => "are empty",
            Renderer::PromptCompletion { .. } => "have an empty completion",
            Renderer::Chat { .. } => "have an empty message to learn",
        };
        let empty = (self.empty > 0).then(|| {
            let hint =
                "only the end of text is learnt from them; remove them if that is unintended";
            Warning::new(about, format!("{} of {rows} rows {what}", self.empty), hint)
        });
        let unknown = self.roles.iter().map(|(role, count)| {
            let message = format!(
                "messages of role `{role}`, {count} in all, are not trained on, and chat templates do \
                 not know it"
            );
            Warning::new(about, message, "name the roles system, user, assistant and tool")
        });
        empty.into_iter().chain(unknown).collect()
    }
}
