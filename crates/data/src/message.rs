//! Chat messages, from `{role, content}` or `ShareGPT`'s `{from, value}`.

use minijinja::{Value, value::ValueKind};

use crate::{
    error::RowError,
    reader::parse_json,
    row::{Row, SYSTEM, describe, wrong_type},
};

/// One message of a chat, with all fields the row gave it (`tool_calls` and the like).
#[derive(Debug, Clone, Hash, PartialEq)]
pub struct Message {
    role: String,
    /// True if its tokens are targets; `None` decides by the role.
    train: Option<bool>,
    fields: Value,
}

/// The chat of a row.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    /// True if the first message is the row's `system`.
    pub(crate) has_system_before: bool,
    /// The row's `tools`, or none.
    pub(crate) tools: Value,
}

impl Message {
    /// A message of plain text; `role` is `system`, `user`, `assistant` or `tool`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        let role = role.into();
        let fields = Value::from_pairs([
            ("role", role.as_str().into()),
            ("content", content.into().into()),
        ] as [(&str, Value); 2]);
        Self {
            role,
            train: None,
            fields,
        }
    }

    /// Role of the speaker.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// True if its tokens are targets: as set by the row, otherwise for the assistant.
    pub fn is_trained(&self) -> bool {
        self.train.unwrap_or_else(|| self.is_assistant())
    }

    pub(crate) fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }

    /// True if the row itself sets whether the message is trained.
    pub(crate) fn has_train_flag(&self) -> bool {
        self.train.is_some()
    }

    /// True if it has neither text nor tool calls.
    pub(crate) fn says_nothing(&self) -> bool {
        let field = |name: &str| self.fields.get_item(&name.into()).unwrap_or_default();
        let has_text = field("content").as_str().map_or_else(
            || field("content").len().unwrap_or(0) > 0,
            |text| !text.trim().is_empty(),
        );
        !has_text && field("tool_calls").len().unwrap_or(0) == 0
    }

    /// The fields as a template sees them.
    pub(crate) fn fields(&self) -> Value {
        self.fields.clone()
    }

    /// The same message with this text as its content, in the shape the content has.
    pub(crate) fn with_content(&self, text: &str) -> Self {
        let content = match self.fields.get_item(&"content".into()) {
            Ok(list) if list.kind() == ValueKind::Seq => {
                Value::from(vec![Value::from_pairs([("type", "text"), ("text", text)])])
            }
            _ => text.into(),
        };
        let others = pairs(&self.fields).filter(|(name, _)| name.as_str() != Some("content"));
        Self {
            fields: Value::from_pairs(others.chain([("content".into(), content)])),
            ..self.clone()
        }
    }

    fn parse(message: Value) -> Result<Self, String> {
        if message.kind() != ValueKind::Map {
            return Err(format!("expected an object, found {}", describe(&message)));
        }
        let field = |name: &str| message.get_item(&name.into()).unwrap_or_default();
        // Axolotl's documentation calls it `training`.
        let flag = Some(field("train")).filter(|flag| !flag.is_undefined());
        let flag = flag.unwrap_or_else(|| field("training"));
        let train = train_flag(&flag, &field("weight"))?;
        if let Some(role) = field("role").as_str() {
            return Ok(Self {
                role: role.to_owned(),
                train,
                fields: as_templates_see(&message),
            });
        }
        let from = field("from");
        let Some(from) = from.as_str() else {
            return Err("has neither `role` nor `from`".to_owned());
        };
        let role = share_gpt_role(from)?;
        let content = field("value");
        if content.as_str().is_none() {
            let found = describe(&content);
            return Err(format!("`value` is {found}, expected a string"));
        }
        let fields = Value::from_pairs([("role", Value::from(role)), ("content", content)]);
        Ok(Self {
            role: role.to_owned(),
            train,
            fields,
        })
    }
}

impl Conversation {
    /// The number of a message in the row's own list, from 1; 0 is the `system` before it.
    pub(crate) fn number(&self, index: usize) -> usize {
        index + usize::from(!self.has_system_before)
    }

    /// The chat in `column` of `row`, with the row's `tools`, and its `system` unless the messages begin with
    /// a system message of their own.
    pub(crate) fn parse(row: &Row, column: &str) -> Result<Self, RowError> {
        let list = row.require(column)?;
        if list.kind() != ValueKind::Seq {
            return Err(match list.as_str() {
                Some(text) if text.trim_start().starts_with('[') => {
                    RowError::ListAsText(column.to_owned())
                }
                _ => wrong_type(column, "a list of messages", &list),
            });
        }
        let messages = as_messages(&list, column)?;
        if messages.is_empty() {
            return Err(RowError::WrongType {
                column: column.to_owned(),
                expected: "a list of messages",
                found: "an empty list".to_owned(),
            });
        }
        Self::new(messages, row, column == SYSTEM)
    }

    /// A chat with the row's `tools`, and its `system` unless that `is_used`, or the messages begin with a system
    /// message of their own.
    pub(crate) fn new(
        mut messages: Vec<Message>,
        row: &Row,
        is_used: bool,
    ) -> Result<Self, RowError> {
        let first = messages.first().map(Message::role);
        let own = is_used || matches!(first, Some("system" | "developer"));
        let system = if own { None } else { row.system()? };
        let has_system_before = system.is_some();
        if let Some(system) = system {
            messages.insert(0, Message::new("system", &*system));
        }
        let tools = row.get("tools").unwrap_or_else(|| Value::from(()));
        // LLaMA-Factory has them as JSON text, and `[]` where there are none.
        let written = tools.as_str().and_then(|text| parse_json(text).ok());
        let tools = match written.filter(|list| list.kind() == ValueKind::Seq) {
            Some(list) if list.len() == Some(0) => Value::from(()),
            list => list.unwrap_or(tools),
        };
        if !matches!(tools.kind(), ValueKind::None | ValueKind::Seq) {
            return Err(wrong_type("tools", "a list, also as JSON text", &tools));
        }
        Ok(Self {
            messages,
            has_system_before,
            tools,
        })
    }
}

/// The messages of a list.
pub(crate) fn as_messages(list: &Value, column: &str) -> Result<Vec<Message>, RowError> {
    let values = (1..).zip(list.try_iter().into_iter().flatten());
    let messages = values.map(|(message, value)| {
        Message::parse(value).map_err(|reason| RowError::Message {
            column: column.to_owned(),
            message,
            reason,
        })
    });
    messages.collect()
}

/// The keys and values of a map.
fn pairs(map: &Value) -> impl Iterator<Item = (Value, Value)> {
    let names = map.try_iter().into_iter().flatten();
    names.map(|name| (name.clone(), map.get_item(&name).unwrap_or_default()))
}

/// The fields as transformers gives them to templates: without nulls, and with an assistant's
/// reasoning, which rows have under one of three names, under the names that templates read.
fn as_templates_see(message: &Value) -> Value {
    let fields: Vec<_> = pairs(message)
        .filter(|(_, value)| !value.is_none())
        .collect();
    let field = |wanted| {
        fields
            .iter()
            .find(|(name, _)| name.as_str() == Some(wanted))
    };
    let reasoning = ["reasoning_content", "thinking", "reasoning"]
        .into_iter()
        .find_map(field)
        .map(|(_, value)| value.clone());
    let under = |name: &str| reasoning.clone().map(|value| (Value::from(name), value));
    let (first, last) = (under("thinking"), under("reasoning_content"));
    Value::from_pairs(first.into_iter().chain(fields).chain(last))
}

/// The role of a speaker; `function_call` and `observation` are LLaMA-Factory's.
fn share_gpt_role(from: &str) -> Result<&'static str, String> {
    Ok(match from {
        "human" | "user" => "user",
        "gpt" | "assistant" | "function_call" => "assistant",
        "system" => "system",
        "tool" | "observation" => "tool",
        _ => {
            return Err(format!(
                "unknown speaker `{from}`: expected human, gpt, system, user, assistant or tool"
            ));
        }
    })
}

/// `train: bool` or `weight: 0 | 1`.
fn train_flag(train: &Value, weight: &Value) -> Result<Option<bool>, String> {
    let flag = match train.kind() {
        ValueKind::Undefined | ValueKind::None => None,
        ValueKind::Bool => Some(train.is_true()),
        _ => {
            return Err(format!(
                "`train` is {}, expected a boolean",
                describe(train)
            ));
        }
    };
    let weight = match weight.kind() {
        ValueKind::Undefined | ValueKind::None => None,
        ValueKind::Number if *weight == Value::from(0) => Some(false),
        ValueKind::Number if *weight == Value::from(1) => Some(true),
        _ => return Err(format!("`weight` is {weight}, expected 0 or 1")),
    };
    if flag.is_some() && weight.is_some() && flag != weight {
        return Err("`train` and `weight` contradict each other".to_owned());
    }
    Ok(flag.or(weight))
}
