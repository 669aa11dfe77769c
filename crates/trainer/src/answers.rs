//! What an adapter answers to prompts of its own dataset, before and after training.

use loraloom_data::{Sample, Tokenizer};
use loraloom_pipeline::Pipeline;

use crate::{
    AnswerSample, TrainerError, decode::decode, place::Place, sampling::Sampler, task::TrainingTask,
};

/// Prompts shown per adapter.
const SAMPLES: usize = 2;
/// An answer is decoded to the reference's length and at most this many tokens more.
const SLACK: usize = 8;
/// Longer references are not shown: decoding them would take longer than training steps.
const LONGEST_REFERENCE: usize = 64;

/// Answers prompts of the task's data with its adapter; `after` is left empty.
pub(crate) fn before(
    pipeline: &Pipeline,
    tokenizer: &Tokenizer,
    task: &TrainingTask,
    place: Place,
) -> Result<Vec<AnswerSample>, TrainerError> {
    shown(task.sample_rows())
        .map(|(prompt, reference)| {
            Ok(AnswerSample {
                prompt: tokenizer.decode(prompt, true)?,
                reference: tokenizer.decode(reference, true)?,
                before: answer(pipeline, tokenizer, prompt, reference.len(), place)?,
                after: String::new(),
            })
        })
        .collect()
}

/// Answers the same prompts again and completes the samples.
pub(crate) fn after(
    pipeline: &Pipeline,
    tokenizer: &Tokenizer,
    task: &TrainingTask,
    place: Place,
) -> Result<Vec<AnswerSample>, TrainerError> {
    shown(task.sample_rows())
        .zip(&task.samples)
        .map(|((prompt, reference), sample)| {
            let after = answer(pipeline, tokenizer, prompt, reference.len(), place)?;
            Ok(AnswerSample {
                after,
                ..sample.clone()
            })
        })
        .collect()
}

fn shown(rows: &[Sample]) -> impl Iterator<Item = (&[u32], &[u32])> {
    rows.iter()
        .map(prompt_and_reference)
        .filter(|(_, reference)| reference.len() <= LONGEST_REFERENCE)
        .take(SAMPLES)
}

/// A sample up to its first target, and its targets from there on.
fn prompt_and_reference(sample: &Sample) -> (&[u32], &[u32]) {
    let targets = &sample.is_target;
    let start = targets
        .iter()
        .skip(1)
        .position(|&target| target)
        .map_or(sample.len(), |at| at + 1);
    let length = targets[start..]
        .iter()
        .take_while(|&&target| target)
        .count();
    (&sample.ids[..start], &sample.ids[start..start + length])
}

fn answer(
    pipeline: &Pipeline,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    reference_length: usize,
    place: Place,
) -> Result<String, TrainerError> {
    let context = pipeline.config().max_position_embeddings;
    let room = context.saturating_sub(prompt.len());
    let length = (reference_length + SLACK).min(room);
    let eos = tokenizer.eos_ids();
    let answers = decode(
        pipeline,
        prompt,
        (place.group, &[Some(place.slot)]),
        eos,
        length,
        &mut [Sampler::greedy()],
    )?;
    Ok(tokenizer.decode(&answers.concat(), true)?)
}
