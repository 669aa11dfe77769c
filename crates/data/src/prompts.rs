//! Prompts of a file, to be answered.

use std::path::Path;

use crate::{
    error::{DataError, RowError},
    message::{Conversation, Message},
    preference, reader,
    row::{Location, Row},
    tokenizer::Tokenizer,
    warning::Warning,
};

/// The column of prompts.
const PROMPT: &str = "prompt";
/// The columns of chats.
const CHATS: [&str; 2] = ["messages", "conversations"];

/// Messages that a chat must have.
const BEFORE_ANSWER: &str = "messages before the answer";

/// A prompt of a file.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Its place.
    pub location: Location,
    /// Its text: as written, or a chat up to its last answer, in the chat template.
    pub text: String,
    /// Ids to continue, with BOS if the tokenizer has one.
    pub ids: Vec<u32>,
}

impl Prompt {
    /// The prompts of a file with a column `prompt` or `messages` (`conversations` in `ShareGPT`'s form), of rows with
    /// preferences as they are trained, or of a `.txt` file with one in every line, without blank lines; and warnings.
    /// With `chat` a prompt is a user's message.
    ///
    /// # Errors
    /// A file that cannot be read; a row without a prompt; a chat, and a tokenizer without a chat template.
    pub fn read(
        path: &Path,
        tokenizer: &Tokenizer,
        chat: bool,
    ) -> Result<(Vec<Self>, Vec<Warning>), DataError> {
        let mut warnings = Vec::new();
        let rows = reader::read_prompts(path, PROMPT, &mut warnings)?;
        let template = || {
            let none = || DataError::NoChatTemplate {
                dataset: path.display().to_string(),
                directory: tokenizer.directory().to_owned(),
            };
            tokenizer.chat_template().ok_or_else(none)
        };
        let prompt = |row: &Row| {
            let at_row = |problem| row.error(problem);
            let column = CHATS.into_iter().find(|column| row.has_content(column));
            let conversation = match column {
                Some(column) => Some(asked(row, column).map_err(at_row)?),
                None => preference::prompt(row, PROMPT).map_err(at_row)?,
            };
            let (text, whole) = if let Some(Conversation {
                messages, tools, ..
            }) = conversation
            {
                let text = template()?.render_with(&messages, &tools, true);
                let text = text.map_err(|problem| at_row(problem.into()))?;
                (text.clone(), text)
            } else {
                let text = written(row).map_err(at_row)?;
                let whole = if chat {
                    let message = Message::new("user", &*text);
                    let whole = template()?.render(&[message], true);
                    whole.map_err(|problem| at_row(problem.into()))?
                } else {
                    text.clone()
                };
                (text, whole)
            };
            let ids = tokenizer.encode_prompt(&whole)?;
            if ids.is_empty() {
                return Err(at_row(RowError::EmptyPrompt));
            }
            Ok(Self {
                location: row.location.clone(),
                text,
                ids,
            })
        };
        let prompts = rows.iter().map(prompt).collect::<Result<_, _>>()?;
        Ok((prompts, warnings))
    }
}

/// The text of a row's prompt.
fn written(row: &Row) -> Result<String, RowError> {
    if row.get(PROMPT).is_none() {
        if let Some(column) = CHATS.into_iter().find(|column| row.get(column).is_some()) {
            return Err(RowError::WrongType {
                column: column.to_owned(),
                expected: BEFORE_ANSWER,
                found: "empty".to_owned(),
            });
        }
        let available = row.names();
        return Err(RowError::NoPrompt { available });
    }
    Ok(row.text(PROMPT)?.as_ref().to_owned())
}

/// A row's chat up to its last answer.
fn asked(row: &Row, column: &str) -> Result<Conversation, RowError> {
    let mut chat = Conversation::parse(row, column)?;
    let messages = &mut chat.messages;
    let asked = messages.iter().rposition(|message| !message.is_assistant());
    messages.truncate(asked.map_or(0, |last| last + 1));
    if messages.is_empty() {
        return Err(RowError::WrongType {
            column: column.to_owned(),
            expected: BEFORE_ANSWER,
            found: "a list of the assistant's messages".to_owned(),
        });
    }
    Ok(chat)
}
