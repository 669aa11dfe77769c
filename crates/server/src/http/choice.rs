use std::{sync::Arc, time::Instant};

use futures_util::{Stream, stream};
use loraloom_inference::{AnswerStream, Finish, ServiceError, Token};

use super::{
    detokenizer::Detokenizer, error::HttpError, key::Caller, log_probs::TokenLogProbs,
    state::HttpState, stop_strings::StopStrings,
};

/// The next part of one of the answers to a request.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Number of the answer.
    pub(crate) index: usize,
    /// May be empty.
    pub(crate) text: String,
    /// `None` if they were not asked for, or the token ended the answer.
    pub(crate) log_probs: Option<TokenLogProbs>,
    /// Set for the last piece.
    pub(crate) finish: Option<&'static str>,
}

/// One of the answers to a request, as it comes.
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) answer: AnswerStream,
    pub(crate) state: Arc<HttpState>,
    pub(crate) caller: Arc<Caller>,
    pub(crate) text: Detokenizer,
    pub(crate) stops: StopStrings,
    pub(crate) wants_log_probs: bool,
    /// Characters of the tokens so far.
    pub(crate) offset: usize,
    /// When the request arrived, until the first token.
    pub(crate) arrived: Option<Instant>,
}

impl Choice {
    /// Its pieces, one a token, up to the last or an error. Dropping them cancels the answer.
    pub(crate) fn pieces(self) -> impl Stream<Item = Result<Piece, HttpError>> {
        stream::unfold(Some(self), async |choice| {
            let mut choice = choice?;
            let piece = choice.next().await;
            let goes_on = matches!(&piece, Ok(Piece { finish: None, .. }));
            Some((piece, goes_on.then_some(choice)))
        })
    }

    async fn next(&mut self) -> Result<Piece, HttpError> {
        let token = self.answer.next().await;
        let token = token.unwrap_or(Err(ServiceError::Stopped))?;
        self.caller.count_tokens(1);
        if let Some(arrived) = self.arrived.take() {
            self.state.metrics.first_token(arrived.elapsed());
        }
        let (text, finish) = self.add(&token)?;
        let is_shown = self.wants_log_probs && token.finish != Some(Finish::Stop);
        let decoder = &self.state.decoder;
        let log_probs = is_shown
            .then(|| TokenLogProbs::new(decoder, &token, &mut self.offset))
            .transpose()?;
        Ok(Piece {
            index: self.index,
            text,
            log_probs,
            finish,
        })
    }

    /// The text that can be shown after a token, and why the answer ends if it does.
    fn add(&mut self, token: &Token) -> Result<(String, Option<&'static str>), HttpError> {
        let mut text = match token.finish {
            Some(Finish::Stop) => String::new(),
            Some(Finish::Length) | None => self.text.push(token.id)?,
        };
        if token.finish.is_some() {
            text += &self.text.finish()?;
        }
        let (mut text, is_stopped) = self.stops.push(&text);
        let finish = match token.finish {
            _ if is_stopped => Some("stop"),
            Some(finish) => {
                text += &self.stops.finish();
                Some(if finish == Finish::Stop {
                    "stop"
                } else {
                    "length"
                })
            }
            None => None,
        };
        Ok((text, finish))
    }
}
