use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::error::Category;

use super::{
    error::{HttpError, shortened},
    messages::ChatMessage,
    prompt::Prompt,
    reply::Api,
    unsupported::Unsupported,
};

/// The fields of a request for text, of both APIs. `null` is as if a field were not there.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Fields {
    pub(crate) model: Option<String>,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) messages: Option<Vec<ChatMessage>>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) max_completion_tokens: Option<usize>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    pub(crate) n: Option<usize>,
    pub(crate) best_of: Option<usize>,
    pub(crate) seed: Option<i64>,
    pub(crate) stop: Option<Stop>,
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) logprobs: Option<LogProbsField>,
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,

    suffix: Option<String>,
    echo: Option<Unsupported>,
    tools: Option<Unsupported>,
    tool_choice: Option<ToolChoice>,
    functions: Option<Unsupported>,
    function_call: Option<ToolChoice>,
    response_format: Option<ResponseFormat>,
    logit_bias: Option<Unsupported>,
    presence_penalty: Option<Unsupported>,
    frequency_penalty: Option<Unsupported>,
    prediction: Option<Unsupported>,
    web_search_options: Option<Unsupported>,
    modalities: Option<Modalities>,
    audio: Option<Unsupported>,
    reasoning_effort: Option<Unsupported>,
    verbosity: Option<Unsupported>,
    // Of vLLM.
    prompt_logprobs: Option<Unsupported>,
    truncate_prompt_tokens: Option<Unsupported>,
    min_tokens: Option<Unsupported>,
    use_beam_search: Option<Unsupported>,
    skip_special_tokens: Option<bool>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<Unsupported>,

    // These do not change an answer.
    #[serde(rename = "user")]
    _user: Option<IgnoredAny>,
    #[serde(rename = "metadata")]
    _metadata: Option<IgnoredAny>,
    #[serde(rename = "store")]
    _store: Option<IgnoredAny>,
    #[serde(rename = "service_tier")]
    _service_tier: Option<IgnoredAny>,
    #[serde(rename = "safety_identifier")]
    _safety_identifier: Option<IgnoredAny>,
    #[serde(rename = "prompt_cache_key")]
    _prompt_cache_key: Option<IgnoredAny>,
    #[serde(rename = "parallel_tool_calls")]
    _parallel_tool_calls: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(crate) enum Stop {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "expected a number or a boolean")]
pub(crate) enum LogProbsField {
    Are(bool),
    Top(usize),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
    /// Of vLLM: usage in each event.
    continuous_usage_stats: Option<Unsupported>,
    /// Padding of events, which nobody needs without a network observer.
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<IgnoredAny>,
}

/// Kinds of output.
#[derive(Debug, Deserialize)]
struct Modalities(Vec<String>);

#[derive(Debug, Deserialize)]
struct ResponseFormat {
    r#type: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or an object")]
enum ToolChoice {
    Mode(String),
    Named(IgnoredAny),
}

impl Fields {
    /// Refuses fields that belong to the other API, and those that would change the answer but have no effect here.
    pub(crate) fn refuse_unsupported(&self, api: Api) -> Result<(), HttpError> {
        let foreign = match api {
            Api::Completions => [
                ("messages", self.messages.is_some()),
                (
                    "max_completion_tokens",
                    self.max_completion_tokens.is_some(),
                ),
                ("top_logprobs", self.top_logprobs.is_some()),
            ],
            Api::Chat => [
                ("prompt", self.prompt.is_some()),
                ("best_of", self.best_of.is_some()),
                ("suffix", self.suffix.is_some()),
            ],
        };
        if let Some((param, _)) = foreign.into_iter().find(|(_, is_there)| *is_there) {
            return Err(HttpError::unknown_field(param));
        }
        let is_set = |field: &Option<Unsupported>| field.as_ref().is_some_and(|field| field.is_set);
        let chooses = |choice: &Option<ToolChoice>| match choice {
            // Without tools, the model has nothing to choose.
            Some(ToolChoice::Mode(mode)) => !matches!(mode.as_str(), "none" | "auto"),
            Some(ToolChoice::Named(_)) => true,
            None => false,
        };
        let is_other = |format: &ResponseFormat| format.r#type != "text";
        let best_of = self.best_of.unwrap_or(self.n.unwrap_or(1));
        let unsupported = [
            (
                "suffix",
                self.suffix
                    .as_ref()
                    .is_some_and(|suffix| !suffix.is_empty()),
            ),
            ("echo", is_set(&self.echo)),
            ("best_of", best_of != self.n.unwrap_or(1)),
            ("tools", is_set(&self.tools)),
            ("tool_choice", chooses(&self.tool_choice)),
            ("functions", is_set(&self.functions)),
            ("function_call", chooses(&self.function_call)),
            (
                "response_format",
                self.response_format.as_ref().is_some_and(is_other),
            ),
            ("logit_bias", is_set(&self.logit_bias)),
            ("presence_penalty", is_set(&self.presence_penalty)),
            ("frequency_penalty", is_set(&self.frequency_penalty)),
            ("prediction", is_set(&self.prediction)),
            ("web_search_options", is_set(&self.web_search_options)),
            (
                "modalities",
                self.modalities
                    .as_ref()
                    .is_some_and(|kinds| kinds.0 != ["text"]),
            ),
            ("audio", is_set(&self.audio)),
            ("reasoning_effort", is_set(&self.reasoning_effort)),
            ("verbosity", is_set(&self.verbosity)),
            ("prompt_logprobs", is_set(&self.prompt_logprobs)),
            (
                "truncate_prompt_tokens",
                is_set(&self.truncate_prompt_tokens),
            ),
            ("min_tokens", is_set(&self.min_tokens)),
            ("use_beam_search", is_set(&self.use_beam_search)),
            (
                "skip_special_tokens",
                self.skip_special_tokens == Some(false),
            ),
            (
                "add_generation_prompt",
                self.add_generation_prompt == Some(false),
            ),
            (
                "continue_final_message",
                is_set(&self.continue_final_message),
            ),
            (
                "stream_options.continuous_usage_stats",
                self.stream_options
                    .as_ref()
                    .is_some_and(|options| is_set(&options.continuous_usage_stats)),
            ),
        ];
        if self.stream_options.is_some() && self.stream != Some(true) {
            let reason = "needs `\"stream\": true`";
            return Err(HttpError::field("stream_options", reason));
        }
        match unsupported.into_iter().find(|(_, is_set)| *is_set) {
            Some((param, _)) => Err(HttpError::Unsupported {
                param: param.to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// Reads a body of JSON.
///
/// # Errors
/// [`HttpError::Body`] if it is no object of JSON; [`HttpError::Field`] with the path of a field that does not fit.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, HttpError> {
    let malformed = |error: &dyn std::error::Error| HttpError::Body {
        reason: shortened(&error.to_string()),
    };
    // Serde does not look into strings of fields that are ignored.
    let body = std::str::from_utf8(body).map_err(|error| malformed(&error))?;
    // Serde takes a list for a struct, too: its fields in their order.
    if !body.trim_ascii_start().starts_with('{') {
        let reason = "expected an object of JSON".to_owned();
        return Err(HttpError::Body { reason });
    }
    let mut json = serde_json::Deserializer::from_str(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        let reason = error.to_string();
        if error.classify() != Category::Data || path == "." {
            return malformed(&error);
        }
        // Serde lists every field that there is.
        if reason.starts_with("unknown field") {
            return HttpError::unknown_field(shortened(&path));
        }
        HttpError::field(shortened(&path), shortened(&in_words_of_json(&reason)))
    })?;
    json.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

/// Replaces names of Rust's types in a message of Serde's.
fn in_words_of_json(reason: &str) -> String {
    let Some((found, expected)) = reason.rsplit_once(", expected ") else {
        return reason.to_owned();
    };
    let end = expected.find(" at line ").unwrap_or(expected.len());
    let (name, place) = expected.split_at(end);
    let name = match name {
        "usize" | "u64" => "a whole number, 0 or larger",
        "u32" => "a whole number from 0 to 4294967295",
        "i64" => "a whole number from -9223372036854775808 to 9223372036854775807",
        "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "an object",
        "path string" => "a string",
        name if name.starts_with("struct ") => "an object",
        name => name,
    };
    format!("{found}, expected {name}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(body: &str) -> String {
        parse::<Fields>(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_field() {
        assert_eq!(error(r#"{"frobnicate": 1}"#), "`frobnicate`: unknown field");
        for (body, start) in [
            (
                r#"{"temperature": "hot"}"#,
                "`temperature`: invalid type: string \"hot\", expected a number at line 1",
            ),
            (
                r#"{"n": -1}"#,
                "`n`: invalid value: integer `-1`, expected a whole number, 0 or larger at line 1",
            ),
            (
                r#"{"seed": "x"}"#,
                "`seed`: invalid type: string \"x\", expected a whole number from -9223372036854775808 to 9223372036854775807 at line 1",
            ),
            (
                r#"{"stop": 5}"#,
                "`stop`: expected a string or a list of strings",
            ),
            (
                r#"{"stop_token_ids": [1, -1]}"#,
                "`stop_token_ids[1]`: invalid value: integer `-1`, expected a whole number from 0 to 4294967295 at",
            ),
            (
                r#"{"stop_token_ids": 1}"#,
                "`stop_token_ids`: invalid type: integer `1`, expected a list at",
            ),
            (
                r#"{"stream_options": 5}"#,
                "`stream_options`: invalid type: integer `5`, expected an object at",
            ),
            (
                r#"{"min_p": "1, expected f64"}"#,
                "`min_p`: invalid type: string \"1, expected f64\", expected a number at",
            ),
            (
                r#"{"stream_options": {"x": 1}}"#,
                "`stream_options.x`: unknown field",
            ),
            (r#"{"n": 1, "n": 2}"#, "malformed body: duplicate field `n`"),
            (r#"{"prompt": {}}"#, "`prompt`: invalid type: map"),
            (
                r#"{"messages": [{"role": "user", "content": 1}]}"#,
                "`messages[0].content`: expected",
            ),
        ] {
            let message = error(body);
            assert!(message.starts_with(start), "{message}");
        }
    }

    #[test]
    fn other_bodies_are_malformed() {
        for body in [
            "",
            "{",
            "[]",
            "{} {}",
            "\"\\ud800\"",
            "nul",
            r#"{"n": 1e999}"#,
        ] {
            let message = error(body);
            assert!(
                message.starts_with("malformed body") || message.starts_with("`n`"),
                "{message}"
            );
        }
        assert!(parse::<Fields>(b"{\"user\": \"\xFF\"}").is_err());
        let deep = format!("{{\"user\": {}", "[".repeat(100_000));
        assert!(parse::<Fields>(deep.as_bytes()).is_err());
    }

    #[test]
    fn no_message_repeats_a_long_body() {
        let long = "x".repeat(100_000);
        assert!(error(&format!("{{\"n\": \"{long}\"}}")).len() < 1_000);
        assert!(error(&format!("{{\"{long}\": 1}}")).len() < 1_000);
    }

    #[test]
    fn unsupported_fields_may_say_nothing() {
        let fields = |body: &str| parse::<Fields>(body.as_bytes()).unwrap();
        let neutral = r#"{"tools": [], "tool_choice": "auto", "functions": null, "echo": false,
            "response_format": {"type": "text"}, "logit_bias": {}, "presence_penalty": 0,
            "frequency_penalty": 0.0, "n": 2}"#;
        for api in [Api::Completions, Api::Chat] {
            assert!(fields(neutral).refuse_unsupported(api).is_ok());
        }
        for (field, value) in [
            ("suffix", r#""x""#),
            ("echo", "true"),
            ("best_of", "2"),
            ("tools", r#"[{"type": "function"}]"#),
            ("tool_choice", r#""required""#),
            ("tool_choice", r#"{"type": "function"}"#),
            ("response_format", r#"{"type": "json_object"}"#),
            ("logit_bias", r#"{"5": 1}"#),
            ("presence_penalty", "0.1"),
            ("frequency_penalty", "-1"),
        ] {
            let refused = fields(&format!("{{\"{field}\": {value}}}"));
            let error = refused.refuse_unsupported(Api::Completions).unwrap_err();
            assert_eq!(error.to_string(), format!("`{field}` is not supported"));
        }
    }
}
