//! Autoregressive decoding with a KV cache: continuations of prompts of one length side by side.

use batchlora::{Segment, Segments};
use loraloom_model::{Sequences, Targets};
use loraloom_pipeline::{Microbatch, Pipeline};

use super::sampling::Sampler;
use crate::{TrainerError, error::Result};

/// Continues every prompt with the adapter in its slot of a group (`None` is the base model), until `eos` or
/// `max_new_tokens`. Returns the new tokens, without EOS. All prompts have the same number of tokens.
pub(crate) fn decode(
    pipeline: &Pipeline,
    prompts: &[&[u32]],
    (group, slots): (usize, &[Option<usize>]),
    eos: &[u32],
    max_new_tokens: usize,
    samplers: &mut [Sampler],
) -> Result<Vec<Vec<u32>>> {
    let prompt = prompts.first().map_or(0, |prompt| prompt.len());
    if prompt == 0 {
        return Err(TrainerError::EmptyPrompt);
    }
    let context = pipeline.config().max_position_embeddings;
    let room = context.saturating_sub(prompt);
    if room == 0 && max_new_tokens > 0 {
        return Err(TrainerError::PromptTooLong { prompt, context });
    }
    let mut caches = pipeline.caches();
    let mut answers = vec![Vec::new(); slots.len()];
    let mut ended = vec![false; slots.len()];
    let mut all: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.to_vec()).collect();
    let mut next = all.clone();
    for _ in 0..max_new_tokens.min(room) {
        let changes = pipeline.config().rope.changes_after();
        let past = caches.tokens();
        if changes.is_some_and(|length| (1..=length).contains(&past) && past + 1 > length) {
            caches = pipeline.caches();
            next.clone_from(&all);
        }
        let microbatch = side_by_side(&next, slots, caches.tokens())?;
        let logits = pipeline.next_logits(group, &microbatch, &mut caches)?;
        let vocabulary = pipeline.config().vocab_size;
        for (index, logits) in logits.chunks_exact(vocabulary).enumerate() {
            let token = samplers[index].pick(logits);
            ended[index] |= eos.contains(&token);
            if !ended[index] {
                answers[index].push(token);
            }
            // Ended sequences stay in the batch until all have ended.
            all[index].push(token);
            next[index] = vec![token];
        }
        if ended.iter().all(|&ended| ended) {
            break;
        }
    }
    Ok(answers)
}

/// Tokens of several sequences as a micro-batch, each with the adapter in its slot or with none; `past` of them are
/// in the cache.
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
