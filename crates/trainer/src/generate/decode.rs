//! Answers to prompts, all together in an engine of their own.

use std::collections::HashMap;

use batchlora::{Segment, Segments};
use loraloom_inference::{BankSlots, Engine, EngineConfig, EngineRequest, Finish};
use loraloom_model::{BLOCK_TOKENS, Sequences, Targets};
use loraloom_pipeline::{Microbatch, Pipeline};

use crate::error::Result;

/// Tokens that are computed at a time.
const BATCH_TOKENS: usize = 2048;

/// What requests may take at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Sequences.
    pub(crate) sequences: usize,
    /// Tokens whose keys and values are held, unless a single request has more.
    pub(crate) tokens: usize,
}

/// Answers every request. Returns the new tokens, without one that ends an answer. `done` is called with the number of
/// requests that have just ended.
pub(crate) fn complete(
    pipeline: &Pipeline,
    places: &BankSlots,
    requests: Vec<EngineRequest>,
    limits: Limits,
    done: &mut dyn FnMut(usize),
) -> Result<Vec<Vec<u32>>> {
    let context = pipeline.config().max_position_embeddings;
    let mut blocks: Vec<usize> = requests
        .iter()
        .map(|request| (request.prompt.len() + request.max_tokens).min(context))
        .map(|tokens| tokens.div_ceil(BLOCK_TOKENS))
        .collect();
    blocks.sort_unstable_by(|a, b| b.cmp(a));
    let most = limits
        .tokens
        .div_ceil(BLOCK_TOKENS)
        .max(blocks.first().copied().unwrap_or(0));
    let together: usize = blocks.iter().take(limits.sequences).sum();
    let mut engine = Engine::new(
        pipeline,
        EngineConfig {
            blocks: together.min(most),
            batch_tokens: BATCH_TOKENS.max(limits.sequences),
            max_sequences: limits.sequences,
        },
    );
    let mut answers = vec![Vec::new(); requests.len()];
    let mut asked = HashMap::new();
    for (index, request) in requests.into_iter().enumerate() {
        if request.max_tokens == 0 {
            done(1);
        } else {
            asked.insert(engine.submit(request)?, index);
        }
    }
    while engine.requests() > 0 {
        for token in engine.step(pipeline, places)? {
            if token.finish != Some(Finish::Stop) {
                answers[asked[&token.request]].push(token.id);
            }
            if token.finish.is_some() {
                done(1);
            }
        }
    }
    Ok(answers)
}

/// A sequence as a micro-batch, with the adapter in a slot or with none.
pub(super) fn alone(ids: &[u32], slot: Option<usize>) -> Result<Microbatch> {
    let rows = 0..ids.len();
    let segments = slot.map(|slot| Segment {
        rows: rows.clone(),
        slot,
    });
    Ok(Microbatch {
        ids: ids.to_vec(),
        sequences: Sequences::from_lengths([ids.len()]),
        cached: None,
        rope_lengths: vec![ids.len()],
        segments: Segments::new(ids.len(), segments.into_iter().collect())?,
        draws: None,
        targets: Targets::default(),
    })
}
