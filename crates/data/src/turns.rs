//! Finds the text that each message adds to a conversation's rendering, if the template does not mark it.
//!
//! The message begins where the rendering of the earlier messages with the generation prompt ends, and ends where the
//! rendering up to it ends, if the whole begins with both. White space is ignored in the comparison, since many
//! templates write other white space once messages follow. Some templates rewrite earlier messages. Then a rendering
//! with a stand-in for the message's content locates the content, and the text that the template writes after it if
//! no message follows shows how much of the following text ends the turn.

use std::ops::Range;

use crate::{
    chat::ChatTemplate,
    error::TemplateError,
    message::{Conversation, Message},
};

/// Stands for a message's content. A noncharacter: filters keep it, and text does not contain it.
const STAND_IN: char = '\u{FDD2}';

/// Last characters of most end-of-turn marks.
const CLOSING: [char; 4] = ['>', ']', '}', ')'];

/// A conversation and its text.
pub(crate) struct Turns<'a> {
    pub(crate) template: &'a ChatTemplate,
    pub(crate) conversation: &'a Conversation,
    pub(crate) whole: &'a str,
}

impl Turns<'_> {
    /// The text of message `index`, with its end of turn and without the generation prompt. `None` if it is known to
    /// begin at or after byte `limit`.
    ///
    /// # Errors
    /// [`TemplateError::Ambiguous`], and errors of a rendering.
    pub(crate) fn span(
        &self,
        index: usize,
        limit: usize,
    ) -> Result<Option<Range<usize>>, TemplateError> {
        let start = self.start(index)?;
        if start.is_some_and(|start| start >= limit) {
            return Ok(None);
        }
        let span = match start {
            Some(start) => self.by_prefixes(index, start)?,
            None => None,
        };
        span.map_or_else(|| self.by_stand_in(index, start), Ok)
            .map(Some)
    }

    /// Position in the whole after the text that message `index` continues.
    fn start(&self, index: usize) -> Result<Option<usize>, TemplateError> {
        let messages = &self.conversation.messages;
        self.passed(&messages[..index], messages[index].is_assistant())
    }

    /// The span from `start` to where the whole has passed the rendering up to message `index`.
    fn by_prefixes(
        &self,
        index: usize,
        start: usize,
    ) -> Result<Option<Range<usize>>, TemplateError> {
        let messages = &self.conversation.messages;
        let end = if index + 1 == messages.len() {
            Some(self.whole.len())
        } else {
            self.passed(&messages[..=index], false)?
        };
        Ok(end.filter(|end| start <= *end).map(|end| start..end))
    }

    /// Position in the whole after the text of its first messages, ignoring white space, if the
    /// template can render these and the whole begins so.
    fn passed(&self, messages: &[Message], prompt: bool) -> Result<Option<usize>, TemplateError> {
        let text = rendered(self.render(messages, prompt))?;
        let common = text.map(|text| follow(&text, self.whole));
        Ok(common
            .filter(|common| common.complete)
            .map(|common| common.text))
    }

    /// The span around the place where a stand-in for the message's content appears; the prompt ends
    /// at `start`, if that is known.
    fn by_stand_in(
        &self,
        index: usize,
        start: Option<usize>,
    ) -> Result<Range<usize>, TemplateError> {
        let ambiguous = |reason: &str| TemplateError::Ambiguous {
            message: self.conversation.number(index),
            reason: reason.to_owned(),
        };
        if self.whole.contains(STAND_IN) {
            return Err(ambiguous(
                "the text contains U+FDD2, which marks its content",
            ));
        }
        let mut messages = self.conversation.messages.clone();
        let role = messages[index].role().to_owned();
        messages[index] = messages[index].with_content(&STAND_IN.to_string());
        let mut replaced = self.render(&messages, false);
        if !matches!(&replaced, Ok(text) if text.contains(STAND_IN)) {
            // Some templates write tool calls instead of the content.
            messages[index] = Message::new(&role, STAND_IN);
            replaced = self.render(&messages, false);
        }
        let replaced = match replaced {
            Ok(text) => text,
            Err(TemplateError::Render(reason)) => {
                return Err(ambiguous(&format!(
                    "the template fails if its content is different: {reason}"
                )));
            }
            Err(error) => return Err(error),
        };
        let after = match replaced.split(STAND_IN).collect::<Vec<_>>()[..] {
            [_, after] => after,
            [_] => return Err(ambiguous("the template omits its content")),
            _ => return Err(ambiguous("the template writes its content more than once")),
        };
        if !self.whole.ends_with(after) {
            return Err(ambiguous("the text after it depends on its content"));
        }
        let last = rendered(self.render(&messages[..=index], false))?;
        let Some((_, tail)) = last.as_deref().and_then(|text| text.split_once(STAND_IN)) else {
            return Err(ambiguous(
                "the template does not render it as the last message",
            ));
        };
        let end = self.whole.len() - after.len() + end_of_turn(tail, after);
        let mut start = start.filter(|start| *start <= end);
        if start.is_none() {
            messages[index] = Message::new(role, STAND_IN);
            start = self.start_by_stand_in(&messages, index)?;
        }
        start
            .filter(|start| *start <= end)
            .map(|start| start..end)
            .ok_or_else(|| ambiguous("the text before it depends on its content"))
    }

    /// Position from which the text of message `index` depends on it and not on earlier messages; in `messages` it is
    /// only a placeholder.
    fn start_by_stand_in(
        &self,
        messages: &[Message],
        index: usize,
    ) -> Result<Option<usize>, TemplateError> {
        let Some(replaced) = rendered(self.render(messages, false))? else {
            return Ok(None);
        };
        let before = replaced.split(STAND_IN).next().unwrap_or_default();
        if self.whole.starts_with(before) {
            return Ok(Some(before.len()));
        }
        // Other parts than the content, such as reasoning, come first.
        let earlier = self.passed(&messages[..index], false)?;
        Ok(earlier.map(|earlier| earlier.max(common_prefix(before, self.whole))))
    }

    fn render(&self, messages: &[Message], prompt: bool) -> Result<String, TemplateError> {
        self.template
            .render_with(messages, &self.conversation.tools, prompt)
    }
}

/// The text, or `None` if the template refuses such messages.
fn rendered(text: Result<String, TemplateError>) -> Result<Option<String>, TemplateError> {
    match text {
        Ok(text) => Ok(Some(text)),
        Err(TemplateError::Render(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Length of the part of `rest` that ends a turn; `tail` is the template's text if no message follows.
fn end_of_turn(tail: &str, rest: &str) -> usize {
    let common = follow(tail, rest);
    if common.complete {
        return common.text;
    }
    // Two different marks may start with the same characters.
    let ends = |character: char| character.is_whitespace() || CLOSING.contains(&character);
    let cut = tail[..common.lead]
        .char_indices()
        .rfind(|(_, character)| ends(*character))
        .map_or(0, |(at, character)| at + character.len_utf8());
    follow(&tail[..cut], rest).text
}

/// Number of bytes in the common prefix.
fn common_prefix(left: &str, right: &str) -> usize {
    let pairs = left.chars().zip(right.chars());
    let same = pairs.take_while(|(left, right)| left == right);
    same.map(|(left, _)| left.len_utf8()).sum()
}

/// Length of the common prefix of two texts.
#[derive(Debug, PartialEq, Eq)]
struct Common {
    /// Bytes of the first text.
    lead: usize,
    /// Bytes of the second.
    text: usize,
    /// Nothing but white space of the first text is left.
    complete: bool,
}

/// Length of the prefix of `text` that equals `lead`, ignoring white space between characters; at
/// the end white space counts if both have it.
fn follow(lead: &str, text: &str) -> Common {
    let skip = |whole: &str, at: usize| {
        let rest = whole[at..].trim_start();
        (rest.chars().next(), whole.len() - rest.len())
    };
    let (mut common, mut other) = (0, 0);
    let complete = loop {
        match (skip(lead, common), skip(text, other)) {
            ((None, _), _) => break true,
            ((Some(left), at), (Some(right), other_at)) if left == right => {
                common = at + left.len_utf8();
                other = other_at + left.len_utf8();
            }
            _ => break false,
        }
    };
    let space: usize = lead[common..]
        .chars()
        .zip(text[other..].chars())
        .take_while(|(left, right)| left == right && left.is_whitespace())
        .map(|(left, _)| left.len_utf8())
        .sum();
    Common {
        lead: common + space,
        text: other + space,
        complete,
    }
}

#[cfg(test)]
mod tests {
    use minijinja::Value;

    use super::{Common, Turns, end_of_turn, follow};
    use crate::{
        chat::ChatTemplate,
        message::{Conversation, Message},
    };

    #[test]
    fn texts_go_together_whatever_their_white_space() {
        for (lead, text, common) in [
            ("", "ab", (0, 0, true)),
            ("ab", "abc", (2, 2, true)),
            ("a\n\n b\n", " a b\n\nc", (6, 5, true)),
            ("a é \n", "aé\n", (4, 3, true)),
            ("ab c", "ab\nd", (2, 2, false)),
            ("<|end|>\n<|eos|>", "<|end|>\n\n<|user|>", (10, 11, false)),
        ] {
            let (in_lead, in_text, complete) = common;
            let expected = Common {
                lead: in_lead,
                text: in_text,
                complete,
            };
            assert_eq!(follow(lead, text), expected, "{lead:?} {text:?}");
        }
    }

    #[test]
    fn a_turn_ends_before_marks_that_differ() {
        for (tail, rest, end) in [
            ("</s>\n\n", "</s>\n\n", "</s>\n\n"),
            ("</s>\n\n", "</s>\n   [user]", "</s>\n"),
            (" </s>", "</s>[user]", "</s>"),
            ("<|end|>\n<|eos|>", "<|end|>\n<|user|>", "<|end|>\n"),
            ("<|end|><|eos|>", "<|end|><|user|>", "<|end|>"),
            ("<|return|>", "<|end|><|start|>", ""),
            ("</s>", "\n\n<user>", ""),
            ("", "\n\n<user>", ""),
        ] {
            assert_eq!(&rest[..end_of_turn(tail, rest)], end, "{tail:?} {rest:?}");
        }
    }

    #[test]
    fn prefixes_and_a_stand_in_find_the_same_text() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/transformers");
        let cases = std::fs::read_to_string(format!("{directory}/cases.json")).unwrap();
        let cases: serde_json::Value = serde_json::from_str(&cases).unwrap();
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")]
            .map(|(name, token)| (name.to_owned(), token.to_owned()));
        let (mut compared, mut only_stand_in) = (0, 0);
        for case in cases["chats"].as_array().unwrap() {
            if case.get("tools").is_some() || case["name"] == "cr_string" {
                continue;
            }
            let source = case["template"].as_str().unwrap();
            let template = ChatTemplate::new(source, tokens.clone().into()).unwrap();
            let messages = case["messages"].as_array().unwrap().iter();
            let conversation = Conversation {
                messages: messages
                    .map(|message| {
                        let field = |name: &str| message[name].as_str().unwrap();
                        Message::new(field("role"), field("content"))
                    })
                    .collect(),
                has_system_before: false,
                tools: Value::from(()),
            };
            let whole = template.render(&conversation.messages, false).unwrap();
            let turns = Turns {
                template: &template,
                conversation: &conversation,
                whole: &whole,
            };
            for (index, message) in conversation.messages.iter().enumerate() {
                if !message.is_trained() {
                    continue;
                }
                let start = turns.start(index).unwrap();
                let span = turns.by_stand_in(index, start).unwrap();
                match start.and_then(|start| turns.by_prefixes(index, start).unwrap()) {
                    Some(prefixes) => assert_eq!(prefixes, span, "{} {whole}", case["name"]),
                    None => only_stand_in += 1,
                }
                compared += 1;
            }
        }
        assert!(
            compared >= 60 && only_stand_in >= 8,
            "{compared} spans, {only_stand_in} of them with a stand-in only"
        );
    }
}
