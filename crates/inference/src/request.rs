use std::collections::HashMap;

use crate::Sampling;

/// Number of a request, unique within an [`Engine`](crate::Engine).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Weights that answer requests: they never change. Sequences share keys and values only within a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

impl Generation {
    /// The base model without an adapter.
    pub const BASE: Self = Self(0);
}

/// Where the weights of a generation are in a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BankSlot {
    /// The group of adapters that the pass belongs to.
    pub group: usize,
    /// The adapter within the group; `None` is the base model.
    pub slot: Option<usize>,
}

/// The generations that a pipeline can compute with.
pub type BankSlots = HashMap<Generation, BankSlot>;

/// A prompt to continue.
#[derive(Debug, Clone)]
pub struct EngineRequest {
    /// The weights that continue it.
    pub generation: Generation,
    /// Its tokens.
    pub prompt: Vec<u32>,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Most tokens of the answer. The context may leave fewer.
    pub max_tokens: usize,
    /// Tokens that end an answer.
    pub stop: Vec<u32>,
    /// Number of the likeliest tokens whose log-probabilities are returned with each token.
    pub top_log_probs: usize,
    /// The tenant that it is charged to.
    pub tenant: String,
    /// The tenant's part of the service beside those of others, above 0.
    pub weight: f64,
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// The request that it answers.
    pub request: RequestId,
    /// Its id.
    pub id: u32,
    /// Its log-probability in nats given all tokens before it: that of the model, before temperature and the other
    /// options of sampling.
    pub log_prob: f32,
    /// The likeliest tokens with their log-probabilities, likeliest first.
    pub top: Vec<(u32, f32)>,
    /// Set for the last token of an answer.
    pub finish: Option<Finish>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// Its last token is one of [`EngineRequest::stop`].
    Stop,
    /// It has as many tokens as asked for, or fills the context.
    Length,
}
