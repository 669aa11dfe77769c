use std::hash::{BuildHasher, RandomState};

use loraloom_inference::Sampling;

use super::{
    error::HttpError,
    fields::{Fields, LogProbsField, Stop},
    reply::Api,
};

/// vLLM's default of completions.
const COMPLETION_TOKENS: usize = 16;
/// Most tokens whose log-probabilities are returned, at a place.
const TOP_LOG_PROBS: usize = 20;
/// Every token of an answer is compared with these.
const STOP_STRINGS: usize = 32;
const STOP_TOKENS: usize = 256;

/// How a request wants its answers.
#[derive(Debug)]
pub(crate) struct Options {
    /// With the seed of the first answer to a prompt.
    pub(crate) sampling: Sampling,
    /// `None` is the rest of the context.
    pub(crate) max_tokens: Option<usize>,
    /// Answers to each prompt.
    pub(crate) n: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    /// Likeliest tokens at each place; `None` returns no log-probabilities.
    pub(crate) log_probs: Option<usize>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

impl Options {
    /// Checks the fields of a request.
    ///
    /// # Errors
    /// [`HttpError::Field`] for a value out of its range.
    pub(crate) fn new(api: Api, fields: &mut Fields) -> Result<Self, HttpError> {
        let max_tokens = match api {
            Api::Completions => Some(fields.max_tokens.unwrap_or(COMPLETION_TOKENS)),
            Api::Chat => fields.max_completion_tokens.or(fields.max_tokens),
        };
        let n = fields.n.unwrap_or(1);
        check("max_tokens", max_tokens != Some(0), "must be at least 1")?;
        check("n", n > 0, "must be at least 1")?;
        let stop = match fields.stop.take() {
            None => Vec::new(),
            Some(Stop::One(string)) => vec![string],
            Some(Stop::Several(strings)) => strings,
        };
        let is_empty = stop.iter().any(String::is_empty);
        check("stop", !is_empty, "an empty string ends no text")?;
        let several = format!("at most {STOP_STRINGS} strings are possible");
        check("stop", stop.len() <= STOP_STRINGS, &several)?;
        let stop_token_ids = fields.stop_token_ids.take().unwrap_or_default();
        let several = format!("at most {STOP_TOKENS} tokens are possible");
        check(
            "stop_token_ids",
            stop_token_ids.len() <= STOP_TOKENS,
            &several,
        )?;
        let stream_options = fields.stream_options.take().unwrap_or_default();
        Ok(Self {
            sampling: sampling(fields)?,
            max_tokens,
            n,
            stop,
            stop_token_ids,
            ignore_eos: fields.ignore_eos.unwrap_or(false),
            log_probs: log_probs(api, fields)?,
            stream: fields.stream.unwrap_or(false),
            include_usage: stream_options.include_usage.unwrap_or(false),
        })
    }
}

fn check(param: &str, is_valid: bool, reason: &str) -> Result<(), HttpError> {
    let error = || HttpError::field(param, reason);
    is_valid.then_some(()).ok_or_else(error)
}

fn sampling(fields: &Fields) -> Result<Sampling, HttpError> {
    let seed = fields.seed.map_or_else(random, |seed| seed as u64);
    let sampling = Sampling {
        temperature: fields.temperature.unwrap_or(1.0),
        // vLLM writes "all" as -1, too.
        top_k: match fields.top_k.unwrap_or(0) {
            -1 => 0,
            top_k => usize::try_from(top_k)
                .map_err(|_| HttpError::field("top_k", "must be -1, 0 or more"))?,
        },
        top_p: fields.top_p.unwrap_or(1.0),
        min_p: fields.min_p.unwrap_or(0.0),
        repetition_penalty: fields.repetition_penalty.unwrap_or(1.0),
        seed,
    };
    let is_probability = (0.0..=1.0).contains(&sampling.top_p) && sampling.top_p > 0.0;
    check(
        "temperature",
        sampling.temperature >= 0.0,
        "must be at least 0",
    )?;
    check("top_p", is_probability, "must be in (0, 1]")?;
    check(
        "min_p",
        (0.0..=1.0).contains(&sampling.min_p),
        "must be in [0, 1]",
    )?;
    let is_positive = sampling.repetition_penalty > 0.0;
    check("repetition_penalty", is_positive, "must be more than 0")?;
    Ok(sampling)
}

fn log_probs(api: Api, fields: &Fields) -> Result<Option<usize>, HttpError> {
    let most = format!("must be at most {TOP_LOG_PROBS}");
    match (api, fields.logprobs) {
        (Api::Completions, Some(LogProbsField::Top(top))) => {
            check("logprobs", top <= TOP_LOG_PROBS, &most)?;
            Ok(Some(top))
        }
        (Api::Completions, Some(LogProbsField::Are(_))) => {
            Err(HttpError::field("logprobs", "expected a number"))
        }
        (Api::Chat, Some(LogProbsField::Top(_))) => {
            Err(HttpError::field("logprobs", "expected a boolean"))
        }
        (Api::Chat, Some(LogProbsField::Are(true))) => {
            let top = fields.top_logprobs.unwrap_or(0);
            check("top_logprobs", top <= TOP_LOG_PROBS, &most)?;
            Ok(Some(top))
        }
        (_, Some(LogProbsField::Are(false)) | None) => {
            let top = fields.top_logprobs.unwrap_or(0);
            check("top_logprobs", top == 0, "needs `logprobs`")?;
            Ok(None)
        }
    }
}

/// A number that nobody can guess and that no two calls share.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::parse;

    fn options(api: Api, body: &str) -> Result<Options, String> {
        let mut fields: Fields = parse(body.as_bytes()).unwrap();
        Options::new(api, &mut fields).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_openai_and_vllm() {
        let completion = options(Api::Completions, "{}").unwrap();
        assert_eq!(completion.max_tokens, Some(16));
        let expected = Sampling {
            temperature: 1.0,
            seed: completion.sampling.seed,
            ..Sampling::default()
        };
        assert_eq!(completion.sampling, expected);
        assert_eq!((completion.n, completion.log_probs), (1, None));
        let chat = options(
            Api::Chat,
            r#"{"max_tokens": 5, "max_completion_tokens": 3, "top_k": -1}"#,
        );
        assert_eq!(chat.unwrap().max_tokens, Some(3));
        assert_eq!(options(Api::Chat, "{}").unwrap().max_tokens, None);
    }

    #[test]
    fn seeds_are_random_unless_given() {
        let seed = |body| options(Api::Chat, body).unwrap().sampling.seed;
        assert_ne!(seed("{}"), seed("{}"));
        assert_eq!(seed(r#"{"seed": -1}"#), u64::MAX);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (param, body) in [
            ("max_tokens", r#"{"max_tokens": 0}"#),
            ("n", r#"{"n": 0}"#),
            ("stop", r#"{"stop": ["a", ""]}"#),
            ("top_k", r#"{"top_k": -2}"#),
            ("top_p", r#"{"top_p": 0}"#),
            ("top_p", r#"{"top_p": 1.1}"#),
            ("min_p", r#"{"min_p": -0.1}"#),
            ("temperature", r#"{"temperature": -1}"#),
            ("repetition_penalty", r#"{"repetition_penalty": 0}"#),
            ("logprobs", r#"{"logprobs": 21}"#),
            ("logprobs", r#"{"logprobs": true}"#),
        ] {
            let error = options(Api::Completions, body).unwrap_err();
            assert!(error.starts_with(&format!("`{param}`")), "{error}");
        }
        for (param, body) in [
            ("logprobs", r#"{"logprobs": 1}"#),
            ("top_logprobs", r#"{"top_logprobs": 1}"#),
            ("top_logprobs", r#"{"logprobs": true, "top_logprobs": 21}"#),
        ] {
            let error = options(Api::Chat, body).unwrap_err();
            assert!(error.starts_with(&format!("`{param}`")), "{error}");
        }
        let strings = vec!["x"; 33];
        assert!(options(Api::Chat, &serde_json::json!({"stop": strings}).to_string()).is_err());
    }
}
