//! Inference with many adapters over one backbone.
//!
//! An [`Engine`] continues sequences of any lengths and adapters in one batch: in every step it decodes a token of each
//! running sequence and computes parts of new prompts. Keys and values are in blocks of one budget; when they run out
//! the newest sequence gives its blocks up and is computed again later. What a sequence is answered does not depend on
//! the others: on the CPU its log-probabilities have the bits of a forward pass over the whole of it.

mod blocks;
mod engine;
mod error;
mod neighbour;
mod reading;
mod request;
mod sequence;
mod service;
mod service_core;
mod store;
mod waiting;

pub use engine::{Engine, EngineConfig};
pub use error::InferenceError;
pub use loraloom_model::Sampling;
pub use neighbour::{Neighbour, TRAINED_TOKEN, apart, train_behind};
pub use reading::{
    FindWeights, FoundWeights, OneThread, ReadAdapter, ReadFiles, TakeWeights, is_of_run,
};
pub use request::{BankSlot, BankSlots, EngineRequest, Finish, Generation, RequestId, Token};
pub use service::{AnswerStream, Ask, Command, ModelCard, Replace, Service, ServiceError, Stats};
pub use service_core::{ServiceConfig, ServiceCore};
pub use store::{AdapterStore, StoreLimits};
