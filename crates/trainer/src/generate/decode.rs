//! Autoregressive decoding with a KV cache: several continuations of one prompt side by side.

use batchlora::{Segment, Segments};
use loraloom_model::{Sequences, Targets};
use loraloom_pipeline::{Microbatch, Pipeline};

use super::sampling::Sampler;
use crate::{TrainerError, error::Result};

/// Continues `prompt` once for each entry of `slots` of a group (`None` is the base model), until
/// `eos` or `max_new_tokens`. Returns the new tokens, without EOS.
pub(crate) fn decode(
    pipeline: &Pipeline,
    prompt: &[u32],
    (group, slots): (usize, &[Option<usize>]),
    eos: &[u32],
    max_new_tokens: usize,
    samplers: &mut [Sampler],
) -> Result<Vec<Vec<u32>>> {
    if prompt.is_empty() {
        return Err(TrainerError::EmptyPrompt);
    }
    let context = pipeline.config().max_position_embeddings;
    let room = context.saturating_sub(prompt.len());
    if room == 0 && max_new_tokens > 0 {
        return Err(TrainerError::PromptTooLong {
            prompt: prompt.len(),
            context,
        });
    }
    let mut caches = pipeline.caches();
    let mut answers = vec![Vec::new(); slots.len()];
    let mut ended = vec![false; slots.len()];
    let mut next: Vec<Vec<u32>> = vec![prompt.to_vec(); slots.len()];
    for _ in 0..max_new_tokens.min(room) {
        let microbatch = side_by_side(&next, slots, caches.tokens())?;
        let logits = pipeline.next_logits(group, &microbatch, &mut caches)?;
        let vocabulary = pipeline.config().vocab_size;
        for (index, logits) in logits.chunks_exact(vocabulary).enumerate() {
            let token = samplers[index].pick(logits);
            ended[index] |= eos.contains(&token);
            if !ended[index] {
                answers[index].push(token);
            }
            // Sequences that have ended go along until all have.
            next[index] = vec![token];
        }
        if ended.iter().all(|&ended| ended) {
            break;
        }
    }
    Ok(answers)
}

/// Tokens of several sequences, each with the adapter in its slot or with none, after so many tokens in
/// the cache.
pub(super) fn side_by_side(
    next: &[Vec<u32>],
    slots: &[Option<usize>],
    past: usize,
) -> Result<Microbatch> {
    let sequences = Sequences::from_lengths(next.iter().map(Vec::len));
    let segments = sequences
        .iter()
        .zip(slots)
        .filter_map(|(rows, slot)| slot.map(|slot| Segment { rows, slot }))
        .collect();
    Ok(Microbatch {
        ids: next.concat(),
        rope_lengths: vec![sequences.longest(); sequences.len()],
        segments: Segments::new(sequences.rows(), segments)?,
        sequences,
        past,
        draws: None,
        targets: Targets::default(),
    })
}
