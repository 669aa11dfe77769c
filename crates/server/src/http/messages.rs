use loraloom_data::Message;
use serde::{Deserialize, de::IgnoredAny};

use super::{detokenizer::Decoder, error::HttpError, unsupported::Unsupported};

/// A message of a chat, as a client writes it or as a response had it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatMessage {
    role: String,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default)]
    name: Option<Unsupported>,
    #[serde(default)]
    tool_calls: Option<Unsupported>,
    #[serde(default)]
    tool_call_id: Option<Unsupported>,
    #[serde(default)]
    function_call: Option<Unsupported>,
    #[serde(default)]
    refusal: Option<Unsupported>,
    #[serde(default)]
    audio: Option<Unsupported>,
    #[serde(default)]
    annotations: Option<Unsupported>,
    // Reasoning of a model that writes it apart.
    #[serde(default)]
    reasoning_content: Option<Unsupported>,
    #[serde(default)]
    reasoning: Option<Unsupported>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string or a list of `{\"type\": \"text\", \"text\": …}`"
)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    #[serde(rename = "type")]
    _type: PartType,
    text: String,
    // These do not change an answer.
    #[serde(default, rename = "annotations")]
    _annotations: Option<IgnoredAny>,
    #[serde(default, rename = "cache_control")]
    _cache_control: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartType {
    Text,
}

impl ChatMessage {
    fn into_message(self, index: usize) -> Result<Message, HttpError> {
        let path = |field: &str| format!("messages[{index}].{field}");
        let unsupported = [
            ("name", &self.name),
            ("tool_calls", &self.tool_calls),
            ("tool_call_id", &self.tool_call_id),
            ("function_call", &self.function_call),
            ("refusal", &self.refusal),
            ("audio", &self.audio),
            ("annotations", &self.annotations),
            ("reasoning_content", &self.reasoning_content),
            ("reasoning", &self.reasoning),
        ];
        let is_set = |field: &Option<Unsupported>| field.as_ref().is_some_and(|field| field.is_set);
        if let Some((field, _)) = unsupported.into_iter().find(|(_, field)| is_set(field)) {
            return Err(HttpError::Unsupported { param: path(field) });
        }
        let role = match self.role.as_str() {
            "system" | "user" | "assistant" => self.role,
            // OpenAI's newer name; chat templates know the older.
            "developer" => "system".to_owned(),
            _ => {
                let reason = "expected `system`, `developer`, `user` or `assistant`";
                return Err(HttpError::field(path("role"), reason));
            }
        };
        let content = match self.content {
            Some(Content::Text(text)) => text,
            // vLLM joins them so for templates that take a text.
            Some(Content::Parts(parts)) => {
                let texts: Vec<String> = parts.into_iter().map(|part| part.text).collect();
                texts.join("\n")
            }
            None => return Err(HttpError::field(path("content"), "is missing")),
        };
        Ok(Message::new(role, content))
    }
}

/// Tokens of a chat in the model's template, up to the start of an answer.
///
/// # Errors
/// A message that has no text; a model without a template; a template that refuses the chat.
pub(crate) fn encode(messages: Vec<ChatMessage>, decoder: &Decoder) -> Result<Vec<u32>, HttpError> {
    let refused = |reason: String| HttpError::field("messages", reason);
    if messages.is_empty() {
        return Err(refused("there is no message".to_owned()));
    }
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(index, message)| message.into_message(index));
    let messages = messages.collect::<Result<Vec<Message>, HttpError>>()?;
    let template = decoder.tokenizer.chat_template();
    let template = template.ok_or_else(|| refused("the model has no chat template".to_owned()))?;
    let text = template.render(&messages, true);
    let text = text.map_err(|error| refused(error.to_string()))?;
    let ids = decoder.tokenizer.encode_prompt(&text);
    ids.map_err(|error| refused(error.to_string()))
}
