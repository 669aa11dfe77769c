//! Answers of adapters to prompts of their own datasets, before and after training.

use std::collections::{BTreeSet, HashMap};

use loraloom_data::{DataError, Sample, Tokenizer};
use loraloom_inference::{BankSlot, EngineRequest, Generation, Sampling};
use loraloom_pipeline::Pipeline;
use loraloom_scheduler::TaskId;

use super::decode::{Limits, complete};
use crate::{
    AnswerSample, Event,
    error::Result,
    events::EventLog,
    tasks::{Placement, SlotLocation, Task},
};

/// An answer may have this many tokens more than the reference.
const SLACK: usize = 8;
/// Longer references are not shown, since decoding them would take longer than training steps.
const LONGEST_REFERENCE: usize = 64;
/// What answers may take of the memory of training.
const LIMITS: Limits = Limits {
    sequences: 64,
    tokens: 4096,
};

/// A prompt, and the most tokens of its answer.
type Key = (Vec<u32>, usize);

/// Asks adapters, and caches the base model's answers.
#[derive(Debug)]
pub(crate) struct Answers<'a> {
    sample_counts: SampleCounts,
    tokenizer: &'a Tokenizer,
    base: HashMap<Key, String>,
}

/// Number of prompts per adapter, and of adapters that answer them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SampleCounts {
    /// Rows of each adapter.
    pub(crate) rows: usize,
    /// Number of adapters, from the first on.
    pub(crate) adapters: usize,
}

/// A prompt and its reference answer.
#[derive(Debug)]
struct Question {
    prompt: Vec<u32>,
    reference: Vec<u32>,
}

/// A prompt for an adapter, or for the base model if `slot` is `None`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Ask {
    group: usize,
    prompt: Vec<u32>,
    length: usize,
    slot: Option<usize>,
}

impl<'a> Answers<'a> {
    pub(crate) fn new(sample_counts: SampleCounts, tokenizer: &'a Tokenizer) -> Self {
        Self {
            sample_counts,
            tokenizer,
            base: HashMap::new(),
        }
    }

    /// Stores the answers that running tasks with `init_from` give before their first step. Fresh adapters answer
    /// like the base model, which can be asked at any time.
    pub(crate) fn ask_before(&self, placed: &mut Placement, ids: &[TaskId]) -> Result<()> {
        let mut asks = Vec::new();
        let mut samples = Vec::new();
        for (task, place) in self.asked(placed, ids) {
            if task.steps > 0 || task.config.init_from.is_none() {
                continue;
            }
            for question in self.questions(task)? {
                samples.push((task.id, sample(self.tokenizer, &question)?));
                asks.push(ask(question, &placed.pipeline, place));
            }
        }
        let answers = self.answer(&placed.pipeline, &asks)?;
        for ((id, sample), before) in samples.into_iter().zip(answers) {
            if let Some(task) = placed.tasks.get_mut(id) {
                task.samples.push(AnswerSample { before, ..sample });
            }
        }
        Ok(())
    }

    /// Completes the samples of running tasks at their end. All are answered together, and the base model answers
    /// each prompt once.
    pub(crate) fn ask_after(
        &mut self,
        placed: &mut Placement,
        log: &mut EventLog<'_>,
        ids: &[TaskId],
    ) -> Result<()> {
        let mut asks = Vec::new();
        let mut of_base = Vec::new();
        let mut samples: Vec<(TaskId, AnswerSample, Option<Key>)> = Vec::new();
        for (task, place) in self.asked(placed, ids) {
            for (number, question) in self.questions(task)?.into_iter().enumerate() {
                let mut sample = sample(self.tokenizer, &question)?;
                let ask = ask(question, &placed.pipeline, place);
                let key = (ask.prompt.clone(), ask.length);
                let base = if task.config.init_from.is_none() {
                    if !self.base.contains_key(&key) && !of_base.contains(&key) {
                        of_base.push(key.clone());
                    }
                    Some(key)
                } else {
                    match task.samples.get(number) {
                        Some(before) => sample.before.clone_from(&before.before),
                        // The task began when fewer prompts were asked for.
                        None => break,
                    }
                    None
                };
                asks.push(ask);
                samples.push((task.id, sample, base));
            }
        }
        for &id in ids {
            if let Some(task) = placed.tasks.get_mut(id) {
                task.samples.clear();
            }
        }
        if asks.is_empty() {
            return Ok(());
        }
        let names = ids.iter().filter_map(|&id| placed.tasks.name_of(id));
        log.emit(Event::Answers {
            adapters: names.collect(),
        });
        // The base model answers beside an adapter with the same prompt.
        let beside = of_base.iter().filter_map(|(prompt, length)| {
            let same = |ask: &&Ask| ask.prompt == *prompt && ask.length == *length;
            let ask = asks.iter().find(same)?.clone();
            Some(Ask { slot: None, ..ask })
        });
        let beside: Vec<Ask> = beside.collect();
        asks.extend(beside);
        let mut answers = self.answer(&placed.pipeline, &asks)?;
        let base = answers.split_off(samples.len());
        self.base.extend(of_base.into_iter().zip(base));
        for ((id, mut sample, base), after) in samples.into_iter().zip(answers) {
            if let Some(before) = base.and_then(|key| self.base.get(&key)) {
                sample.before.clone_from(before);
            }
            if let Some(task) = placed.tasks.get_mut(id) {
                task.samples.push(AnswerSample { after, ..sample });
            }
        }
        Ok(())
    }

    /// The running tasks of `ids` that answer prompts.
    fn asked<'t>(
        &self,
        placed: &'t Placement,
        ids: &[TaskId],
    ) -> impl Iterator<Item = (&'t Task, SlotLocation)> {
        let adapters = self.sample_counts.adapters as u64;
        let asked = ids.iter().filter(move |id| id.0 < adapters);
        asked.filter_map(|&id| placed.running(id).ok())
    }

    fn questions(&self, task: &Task) -> Result<Vec<Question>> {
        // Of a pair the chosen answer is expected.
        let is_expected = |sample: &Result<Sample, DataError>| !matches!(sample, Ok(sample) if sample.preferred == Some(false));
        let questions = task.sample_rows().iter().filter(is_expected);
        let questions = questions.map(|sample| Ok(Question::of(sample?)));
        let is_long = |question: &Question| question.reference.len() > LONGEST_REFERENCE;
        let short = questions.filter(|question| !question.as_ref().is_ok_and(is_long));
        short.take(self.sample_counts.rows).collect()
    }

    /// The answers, in the order of `asks`.
    fn answer(&self, pipeline: &Pipeline, asks: &[Ask]) -> Result<Vec<String>> {
        let place = |ask: &Ask| BankSlot {
            group: ask.group,
            slot: ask.slot,
        };
        let places: BTreeSet<BankSlot> = asks.iter().map(place).collect();
        let places: Vec<BankSlot> = places.into_iter().collect();
        let generation = |place| Generation(places.partition_point(|other| *other < place) as u64);
        let requests = asks.iter().map(|ask| EngineRequest {
            generation: generation(place(ask)),
            prompt: ask.prompt.clone(),
            sampling: Sampling::default(),
            max_tokens: ask.length,
            stop: self.tokenizer.eos_ids().to_vec(),
            top_log_probs: 0,
            tenant: String::new(),
            weight: 1.0,
        });
        let by_generation = places.iter().map(|&place| (generation(place), place));
        let by_generation = by_generation.collect();
        let answers = complete(
            pipeline,
            &by_generation,
            requests.collect(),
            LIMITS,
            &mut |_| (),
        )?;
        let texts = answers
            .iter()
            .map(|answer| self.tokenizer.decode(answer, true));
        Ok(texts.collect::<Result<_, DataError>>()?)
    }
}

fn ask(question: Question, pipeline: &Pipeline, place: SlotLocation) -> Ask {
    let context = pipeline.config().max_position_embeddings;
    let room = context.saturating_sub(question.prompt.len());
    Ask {
        group: place.group,
        slot: Some(place.slot),
        prompt: question.prompt,
        length: (question.reference.len() + SLACK).min(room),
    }
}

impl Question {
    /// Splits a sample at its first target.
    fn of(sample: Sample) -> Self {
        let mut later = sample.is_target.iter().skip(1);
        let start = later.position(|&target| target);
        let start = start.map_or(sample.len(), |at| at + 1);
        let targets = sample.is_target[start..].iter();
        let length = targets.take_while(|&&target| target).count();
        let mut prompt = sample.ids;
        prompt.truncate(start + length);
        let reference = prompt.split_off(start);
        Self { prompt, reference }
    }
}

/// A question as text, without answers.
fn sample(tokenizer: &Tokenizer, question: &Question) -> Result<AnswerSample> {
    Ok(AnswerSample {
        prompt: readable(tokenizer, &question.prompt)?,
        reference: tokenizer.decode(&question.reference, true)?,
        before: String::new(),
        after: String::new(),
    })
}

/// Decodes tokens without special ones; the parts that these separate are on lines of their own.
fn readable(tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, DataError> {
    let is_special = |id: u32| {
        let text = |skip| tokenizer.decode(&[id], skip);
        Ok::<bool, DataError>(text(true)?.is_empty() && !text(false)?.is_empty())
    };
    let mut parts = vec![Vec::new()];
    for &id in ids {
        if is_special(id)? {
            parts.push(Vec::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(id);
        }
    }
    let mut texts = Vec::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let text = tokenizer.decode(part, true)?;
        // Templates also have line ends beside special tokens.
        let text = text.trim_matches('\n');
        if !text.is_empty() {
            texts.push(text.to_owned());
        }
    }
    Ok(texts.join("\n"))
}
