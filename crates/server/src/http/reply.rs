use serde_json::{Value, json};

use super::{choice::Piece, log_probs::TokenLogProbs};

/// The two ways to ask for text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Completions,
    Chat,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) answers: usize,
}

impl Usage {
    fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.answers,
            "total_tokens": self.prompt + self.answers,
        })
    }
}

/// A whole answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Whole {
    pub(crate) text: String,
    pub(crate) log_probs: Vec<TokenLogProbs>,
    pub(crate) finish: Option<&'static str>,
}

/// Writes answers in OpenAI's shapes.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) api: Api,
    /// Without its prefix.
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
    /// The generation that answers.
    pub(crate) fingerprint: String,
    pub(crate) wants_log_probs: bool,
    /// True if each chunk has a `usage`, which is `null` in all but the last.
    pub(crate) includes_usage: bool,
}

impl Reply {
    /// The response without streaming.
    pub(crate) fn whole(&self, answers: Vec<Whole>, usage: Usage) -> Value {
        let choices = answers.into_iter().enumerate().map(|(index, answer)| {
            let log_probs = self.log_probs(&answer.log_probs);
            match self.api {
                Api::Completions => json!({
                    "index": index, "text": answer.text, "logprobs": log_probs,
                    "finish_reason": answer.finish,
                }),
                Api::Chat => json!({
                    "index": index,
                    "message": {"role": "assistant", "content": answer.text, "refusal": null},
                    "logprobs": log_probs, "finish_reason": answer.finish,
                }),
            }
        });
        let object = match self.api {
            Api::Completions => "text_completion",
            Api::Chat => "chat.completion",
        };
        let mut value = self.envelope(object, choices.collect());
        value["usage"] = usage.to_json();
        value
    }

    /// The chunk before an answer's text, in the chat API.
    pub(crate) fn begin(&self, index: usize) -> Option<Value> {
        let choice = json!({
            "index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
            "finish_reason": null,
        });
        (self.api == Api::Chat).then(|| self.chunk(vec![choice]))
    }

    /// The chunk of a piece, if it has one.
    pub(crate) fn piece(&self, piece: Piece) -> Option<Value> {
        if piece.text.is_empty() && piece.log_probs.is_none() && piece.finish.is_none() {
            return None;
        }
        let log_probs = match &piece.log_probs {
            Some(log_probs) => self.log_probs(std::slice::from_ref(log_probs)),
            None => Value::Null,
        };
        let (index, finish) = (piece.index, piece.finish);
        let choice = match self.api {
            Api::Completions => json!({
                "index": index, "text": piece.text, "logprobs": log_probs, "finish_reason": finish,
            }),
            Api::Chat => {
                let delta = if piece.text.is_empty() && finish.is_some() {
                    json!({})
                } else {
                    json!({"content": piece.text})
                };
                json!({
                    "index": index, "delta": delta, "logprobs": log_probs, "finish_reason": finish,
                })
            }
        };
        Some(self.chunk(vec![choice]))
    }

    /// The last chunk, if the request wants it.
    pub(crate) fn usage(&self, usage: Usage) -> Option<Value> {
        let mut value = self.chunk(Vec::new());
        value["usage"] = usage.to_json();
        self.includes_usage.then_some(value)
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let object = match self.api {
            Api::Completions => "text_completion",
            Api::Chat => "chat.completion.chunk",
        };
        let mut value = self.envelope(object, choices);
        if self.includes_usage {
            value["usage"] = Value::Null;
        }
        value
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Value {
        let prefix = match self.api {
            Api::Completions => "cmpl",
            Api::Chat => "chatcmpl",
        };
        json!({
            "id": format!("{prefix}-{}", self.id),
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "system_fingerprint": self.fingerprint,
        })
    }

    fn log_probs(&self, tokens: &[TokenLogProbs]) -> Value {
        match self.api {
            _ if !self.wants_log_probs => Value::Null,
            Api::Completions => TokenLogProbs::completion(tokens),
            Api::Chat => TokenLogProbs::chat(tokens),
        }
    }
}
