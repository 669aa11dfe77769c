//! Chat templates, rendered as transformers renders them, and the parts of their text that are trained on.

use std::{collections::BTreeMap, ops::Range};

use minijinja::{Environment, Value, context};

use crate::{
    error::TemplateError,
    generation::{self, MARKED},
    jinja::{self, chat_environment, syntax_error},
    message::{Conversation, Message},
    turns::Turns,
};

const PLAIN: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token`, … for the template.
    special_tokens: BTreeMap<String, String>,
    has_generation: bool,
}

impl ChatTemplate {
    /// Compiles `source`; `special_tokens` maps names such as `bos_token` to their text.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] if it does not compile.
    pub fn new(
        source: &str,
        special_tokens: BTreeMap<String, String>,
    ) -> Result<Self, TemplateError> {
        let mut environment = chat_environment()?;
        let has_generation = generation::add(&mut environment, PLAIN, source)?;
        Ok(Self {
            environment,
            special_tokens,
            has_generation,
        })
    }

    /// The same template over another tokenizer's special tokens.
    pub(crate) fn with_special_tokens(mut self, tokens: BTreeMap<String, String>) -> Self {
        self.special_tokens = tokens;
        self
    }

    /// The text of a chat; `add_generation_prompt` ends it with the start of an assistant turn.
    ///
    /// # Errors
    /// [`TemplateError::Render`] if the template fails or raises an exception.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        self.render_with(messages, &Value::from(()), add_generation_prompt)
    }

    /// Byte ranges of `whole`, the conversation's rendering, that are trained on.
    ///
    /// These are the template's generation blocks if it has any and no message sets its own flag; otherwise the text
    /// that each trained message adds. Messages that begin at or after byte `limit` are skipped.
    ///
    /// # Errors
    /// [`TemplateError::Ambiguous`] if the text that a message adds cannot be determined;
    /// [`TemplateError::Generation`]; errors of a rendering.
    pub(crate) fn target_spans(
        &self,
        conversation: &Conversation,
        whole: &str,
        limit: usize,
    ) -> Result<Vec<Range<usize>>, TemplateError> {
        let Conversation {
            messages, tools, ..
        } = conversation;
        if self.has_generation && !messages.iter().any(Message::has_train_flag) {
            let marked = self.render_named(MARKED, messages, tools, false)?;
            return generation::spans(&marked, whole);
        }
        let turns = Turns {
            template: self,
            conversation,
            whole,
        };
        let mut spans = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            if !message.is_trained() {
                continue;
            }
            match turns.span(index, limit)? {
                Some(span) => spans.push(span),
                None => break,
            }
        }
        Ok(spans)
    }

    /// The text of some messages, without generation marks.
    pub(crate) fn render_with(
        &self,
        messages: &[Message],
        tools: &Value,
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        self.render_named(PLAIN, messages, tools, add_generation_prompt)
    }

    fn render_named(
        &self,
        name: &str,
        messages: &[Message],
        tools: &Value,
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let template = self
            .environment
            .get_template(name)
            .map_err(|error| syntax_error(&error))?;
        let special_tokens = Value::from_pairs(&self.special_tokens);
        let context = context! {
            messages => messages.iter().map(Message::fields).collect::<Vec<_>>(),
            tools => tools.clone(),
            documents => Value::from(()),
            add_generation_prompt,
            ..special_tokens
        };
        jinja::render(&template, context)
    }
}
