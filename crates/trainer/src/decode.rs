//! Autoregressive decoding with a KV cache: several continuations of one prompt side by side.

use batchlora::{Segment, Segments};
use loraloom_model::{LayerCache, LlamaConfig, SequenceBatch, Sequences, to_host};
use loraloom_pipeline::{Microbatch, Stage};

use crate::{TrainerError, sampling::Sampler};

/// Continues `prompt` once for each entry of `slots` (`None` is the base model), until `eos` or
/// `max_new_tokens`. Returns the new tokens, without EOS.
pub(crate) fn decode(
    stage: &Stage,
    config: &LlamaConfig,
    prompt: &[u32],
    slots: &[Option<usize>],
    eos: &[u32],
    max_new_tokens: usize,
    samplers: &mut [Sampler],
) -> Result<Vec<Vec<u32>>, TrainerError> {
    if prompt.is_empty() {
        return Err(TrainerError::EmptyPrompt);
    }
    let context = config.max_position_embeddings;
    let room = context.saturating_sub(prompt.len());
    if room == 0 && max_new_tokens > 0 {
        return Err(TrainerError::PromptTooLong {
            prompt: prompt.len(),
            context,
        });
    }
    let mut caches = vec![LayerCache::default(); stage.layers().len()];
    let mut answers = vec![Vec::new(); slots.len()];
    let mut ended = vec![false; slots.len()];
    let mut next: Vec<Vec<u32>> = vec![prompt.to_vec(); slots.len()];
    for _ in 0..max_new_tokens.min(room) {
        let past = caches.first().map_or(0, LayerCache::len);
        let microbatch = side_by_side(config, &next, slots, past, stage)?;
        let hidden = stage.embed(&next.concat())?;
        let hidden = stage.infer_cached(hidden, &microbatch, &mut caches)?;
        let [rows, width] = hidden.dims();
        let (count, tokens) = (slots.len(), rows / slots.len());
        let last = hidden
            .reshape([count, tokens, width])
            .narrow(1, tokens - 1, 1);
        let logits = stage.logits(last.reshape([count, width]))?;
        let vocabulary = logits.dims()[1];
        let logits = to_host(logits)?;
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

fn side_by_side(
    config: &LlamaConfig,
    next: &[Vec<u32>],
    slots: &[Option<usize>],
    past: usize,
    stage: &Stage,
) -> Result<Microbatch, TrainerError> {
    let sequences = Sequences::from_lengths(next.iter().map(Vec::len));
    let segments = sequences
        .iter()
        .zip(slots)
        .filter_map(|(rows, slot)| slot.map(|slot| Segment { rows, slot }))
        .collect();
    Ok(Microbatch {
        segments: Segments::new(sequences.rows(), segments)?,
        batch: SequenceBatch::following(config, sequences, past, stage.device()),
        draws: None,
    })
}
