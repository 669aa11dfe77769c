use loraloom_data::DataError;
use loraloom_inference::Token;
use serde_json::{Map, Value, json};

use super::detokenizer::Decoder;

/// JSON has no infinity; vLLM writes this.
const LEAST: f32 = -9999.0;

/// A token with its log-probability and the likeliest in its place.
#[derive(Debug, Clone)]
pub(crate) struct TokenLogProbs {
    token: LogProb,
    top: Vec<LogProb>,
    /// Characters of the answer before it.
    offset: usize,
}

#[derive(Debug, Clone)]
struct LogProb {
    text: String,
    /// Bytes of a token that is a part of a character.
    bytes: Option<Vec<u8>>,
    /// In nats.
    value: f32,
}

impl LogProb {
    fn new(decoder: &Decoder, id: u32, value: f32) -> Result<Self, DataError> {
        let text = decoder.token(id)?;
        let is_part = text.contains(char::REPLACEMENT_CHARACTER);
        let bytes = is_part
            .then(|| decoder.tokenizer.part_of_character(id))
            .flatten();
        Ok(Self {
            text,
            bytes,
            value: value.max(LEAST),
        })
    }

    /// Its text, or its bytes as OpenAI writes them.
    fn token(&self) -> String {
        match &self.bytes {
            Some(bytes) => bytes.escape_ascii().to_string(),
            None => self.text.clone(),
        }
    }

    /// The same as the completions API writes it.
    fn key(&self) -> String {
        let prefix = if self.bytes.is_some() { "bytes:" } else { "" };
        format!("{prefix}{}", self.token())
    }

    /// The chat API's object.
    fn to_json(&self) -> Value {
        let whole =
            (!self.text.contains(char::REPLACEMENT_CHARACTER)).then_some(self.text.as_bytes());
        let bytes = self.bytes.as_deref().or(whole);
        json!({"token": self.token(), "logprob": self.value, "bytes": bytes})
    }
}

impl TokenLogProbs {
    /// Those of a token, at an offset that moves behind it.
    ///
    /// # Errors
    /// If the tokenizer's decoder fails.
    pub(crate) fn new(
        decoder: &Decoder,
        token: &Token,
        offset: &mut usize,
    ) -> Result<Self, DataError> {
        let top = token.top.iter();
        let log_prob = LogProb::new(decoder, token.id, token.log_prob)?;
        let at = *offset;
        *offset += log_prob.text.chars().count();
        Ok(Self {
            token: log_prob,
            top: top
                .map(|&(id, value)| LogProb::new(decoder, id, value))
                .collect::<Result<_, _>>()?,
            offset: at,
        })
    }

    /// The object of the completions API.
    pub(crate) fn completion(tokens: &[Self]) -> Value {
        let texts: Vec<String> = tokens.iter().map(|token| token.token.key()).collect();
        let values: Vec<f32> = tokens.iter().map(|token| token.token.value).collect();
        let offsets: Vec<usize> = tokens.iter().map(|token| token.offset).collect();
        let tops: Vec<Map<String, Value>> = tokens.iter().map(Self::top_by_text).collect();
        json!({
            "tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets,
        })
    }

    /// The likeliest tokens, and the picked one if it is none of them. Of tokens with the same text, the likeliest.
    fn top_by_text(&self) -> Map<String, Value> {
        let mut map = Map::new();
        for log_prob in self.top.iter().chain([&self.token]) {
            map.entry(log_prob.key())
                .or_insert_with(|| log_prob.value.into());
        }
        map
    }

    /// The object of the chat API.
    pub(crate) fn chat(tokens: &[Self]) -> Value {
        let content = tokens.iter().map(|token| {
            let mut object = token.token.to_json();
            object["top_logprobs"] = token.top.iter().map(LogProb::to_json).collect();
            object
        });
        json!({"content": content.collect::<Vec<Value>>(), "refusal": null})
    }
}
