use std::{collections::VecDeque, convert::Infallible, pin::Pin, sync::Arc, time::Instant};

use axum::{
    Extension,
    extract::{Request, State},
    http::StatusCode,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{
    Stream, StreamExt,
    stream::{self, SelectAll},
};
use loraloom_inference::{AnswerStream, Ask, InferenceError, ServiceError};

use super::{
    choice::{Choice, Piece},
    detokenizer::Detokenizer,
    error::{HttpError, json_response},
    fields::Fields,
    key::Caller,
    messages,
    options::{Options, random},
    read,
    reply::{Api, Reply, Usage, Whole},
    state::{HttpState, now},
    stop_strings::StopStrings,
};

type Pieces = SelectAll<Pin<Box<dyn Stream<Item = Result<Piece, HttpError>> + Send>>>;

/// `POST /v1/completions`.
pub(crate) async fn completions(
    State(state): State<Arc<HttpState>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, HttpError> {
    generate(Api::Completions, state, caller, request).await
}

/// `POST /v1/chat/completions`.
pub(crate) async fn chat(
    State(state): State<Arc<HttpState>>,
    Extension(caller): Extension<Arc<Caller>>,
    request: Request,
) -> Result<Response, HttpError> {
    generate(Api::Chat, state, caller, request).await
}

async fn generate(
    api: Api,
    state: Arc<HttpState>,
    caller: Arc<Caller>,
    request: Request,
) -> Result<Response, HttpError> {
    let arrived = Instant::now();
    let permit = state.requests.try_acquire();
    let waiting = state.limits.requests;
    let _permit = permit.map_err(|_| ServiceError::Busy { waiting })?;
    caller.admit(arrived)?;
    let mut fields: Fields = read::json(request, &state.limits).await?;
    fields.refuse_unsupported(api)?;
    let missing = |param: &str| HttpError::field(param, "is missing");
    let model = fields.model.take().ok_or_else(|| missing("model"))?;
    let options = Options::new(api, &mut fields)?;
    let count = fields
        .prompt
        .as_ref()
        .map_or(1, super::prompt::Prompt::count);
    let most = state.limits.answers;
    if options.n.saturating_mul(count) > most {
        let reason = format!(
            "{} answers to each of {count} prompts are more than {most}",
            options.n
        );
        return Err(HttpError::field("n", reason));
    }
    let prompts = match api {
        Api::Completions => {
            let prompt = fields.prompt.take().ok_or_else(|| missing("prompt"))?;
            blocking(&state, move |state| prompt.encode(&state.decoder)).await?
        }
        Api::Chat => {
            let chat = fields.messages.take().ok_or_else(|| missing("messages"))?;
            let encode = move |state: &HttpState| messages::encode(chat, &state.decoder);
            vec![blocking(&state, encode).await?]
        }
    };
    let usage = Usage {
        prompt: prompts.iter().map(Vec::len).sum(),
        answers: 0,
    };
    let answers = ask(&state, &caller, &model, &options, prompts).await?;
    caller.count_tokens(usage.prompt);
    let fingerprint = answers.first().map(|answer| answer.generation().to_owned());
    let reply = Reply {
        api,
        id: format!("{:016x}{:016x}", random(), random()),
        created: now(),
        model,
        fingerprint: fingerprint.unwrap_or_default(),
        wants_log_probs: options.log_probs.is_some(),
        includes_usage: options.include_usage,
    };
    let count = answers.len();
    let pieces = answers.into_iter().enumerate().map(|(index, answer)| {
        let choice = Choice {
            index,
            answer,
            state: Arc::clone(&state),
            caller: Arc::clone(&caller),
            text: Detokenizer::new(Arc::clone(&state.decoder)),
            stops: StopStrings::new(options.stop.clone()),
            wants_log_probs: reply.wants_log_probs,
            offset: 0,
            arrived: Some(arrived),
        };
        choice.pieces().boxed()
    });
    let pieces = stream::select_all(pieces);
    if options.stream {
        Ok(events(reply, pieces, count, usage))
    } else {
        whole(&reply, pieces, count, usage).await
    }
}

/// Runs what takes a core for long on another thread.
async fn blocking<T: Send + 'static>(
    state: &Arc<HttpState>,
    work: impl FnOnce(&HttpState) -> Result<T, HttpError> + Send + 'static,
) -> Result<T, HttpError> {
    let failed = |error: &dyn std::fmt::Display| HttpError::Internal(error.to_string());
    let permit = state.encoders.acquire().await;
    let _permit = permit.map_err(|error| failed(&error))?;
    let state = Arc::clone(state);
    let done = tokio::task::spawn_blocking(move || work(&state)).await;
    done.map_err(|error| failed(&error))?
}

/// Asks for all answers, prompt by prompt. Those that were asked for are cancelled if one is refused.
async fn ask(
    state: &HttpState,
    caller: &Caller,
    model: &str,
    options: &Options,
    prompts: Vec<Vec<u32>>,
) -> Result<Vec<AnswerStream>, HttpError> {
    let eos = state.decoder.tokenizer.eos_ids().iter();
    let eos = eos.filter(|_| !options.ignore_eos);
    let stop: Vec<u32> = eos.chain(&options.stop_token_ids).copied().collect();
    let mut answers = Vec::new();
    for prompt in prompts {
        for number in 0..options.n {
            let mut sampling = options.sampling.clone();
            // As vLLM's: a request's seed must not give all its answers the same draws.
            sampling.seed = sampling.seed.wrapping_add(number as u64);
            let rest = state.context.saturating_sub(prompt.len()).max(1);
            let mut question = Ask {
                model: model.to_owned(),
                prompt: prompt.clone(),
                sampling,
                max_tokens: options.max_tokens.unwrap_or(rest),
                stop: stop.clone(),
                top_log_probs: options.log_probs.unwrap_or(0),
                tenant: caller.tenant.clone(),
                weight: caller.weight,
            };
            let mut answer = state.service.ask(question.clone()).await;
            if let Err(ServiceError::Refused(InferenceError::TooLarge { prompt, tokens, .. })) =
                answer
                && options.max_tokens.is_none()
                && prompt <= tokens
            {
                // The last token of an answer needs no memory.
                question.max_tokens = tokens - prompt + 1;
                answer = state.service.ask(question).await;
            }
            answers.push(answer?);
        }
    }
    Ok(answers)
}

async fn whole(
    reply: &Reply,
    mut pieces: Pieces,
    count: usize,
    mut usage: Usage,
) -> Result<Response, HttpError> {
    let mut answers = vec![Whole::default(); count];
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        usage.answers += 1;
        let answer = &mut answers[piece.index];
        answer.text += &piece.text;
        answer.log_probs.extend(piece.log_probs);
        answer.finish = piece.finish;
    }
    Ok(json_response(StatusCode::OK, &reply.whole(answers, usage)))
}

fn events(reply: Reply, pieces: Pieces, count: usize, usage: Usage) -> Response {
    let event = |value: serde_json::Value| Event::default().data(value.to_string());
    let ready = (0..count).filter_map(|index| reply.begin(index)).map(event);
    let ready: VecDeque<Event> = ready.collect();
    let start = (reply, Some(pieces), usage, ready);
    let events = stream::unfold(
        start,
        move |(reply, mut pieces, mut usage, mut ready)| async move {
            loop {
                if let Some(event) = ready.pop_front() {
                    return Some((Ok::<_, Infallible>(event), (reply, pieces, usage, ready)));
                }
                let last = match pieces.as_mut()?.next().await {
                    Some(Ok(piece)) => {
                        usage.answers += 1;
                        ready.extend(reply.piece(piece).map(event));
                        continue;
                    }
                    Some(Err(error)) => Some(error.body()),
                    None => reply.usage(usage),
                };
                // An error cancels the other answers.
                pieces = None;
                ready.extend(last.map(event));
                ready.push_back(Event::default().data("[DONE]"));
            }
        },
    );
    // Proxies cut connections off over which nothing comes while a request waits.
    Sse::new(events)
        .keep_alive(KeepAlive::default())
        .into_response()
}
