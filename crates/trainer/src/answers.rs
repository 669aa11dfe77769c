//! What adapters answer to prompts of their own datasets, before and after training.

use std::collections::{BTreeMap, HashMap};

use loraloom_data::{DataError, Sample, Tokenizer};
use loraloom_scheduler::TaskId;

use crate::{
    AnswerSample, Event, TrainerError, decode::decode, place::Place, sampling::Sampler,
    session::Session, task::TrainingTask,
};

/// An answer is decoded to the reference's length and at most this many tokens more.
const SLACK: usize = 8;
/// Longer references are not shown: decoding them would take longer than training steps.
const LONGEST_REFERENCE: usize = 64;
/// Tokens of prompts that are decoded side by side at the most, unless a single one has more.
const SIDE_BY_SIDE: usize = 2048;

/// A prompt, and the tokens of its answer at the most.
type Key = (Vec<u32>, usize);

/// Who answers, and what is known of that.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) asked: Asked,
    /// What the base model answers.
    base: HashMap<Key, String>,
}

/// How many prompts are answered by how many adapters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Rows of each adapter.
    pub(crate) rows: usize,
    /// The first so many adapters.
    pub(crate) adapters: usize,
}

/// A prompt, and what its row answers.
#[derive(Debug, Clone, Copy)]
struct Question<'a> {
    prompt: &'a [u32],
    reference: &'a [u32],
}

/// A prompt to be answered by an adapter, or by the base model where there is none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Ask {
    group: usize,
    prompt: Vec<u32>,
    length: usize,
    slot: Option<usize>,
}

impl Session<'_> {
    /// Keeps what running tasks that begin with an adapter answer before their first step. What the
    /// others begin with answers like the base model, which can be asked at any time.
    pub(crate) fn ask_before(&mut self, tasks: &[TaskId]) -> Result<(), TrainerError> {
        let mut asks = Vec::new();
        let mut samples = Vec::new();
        for (index, task, place) in self.asked(tasks) {
            if task.steps > 0 || task.config.init_from.is_none() {
                continue;
            }
            for question in self.questions(task) {
                asks.push(self.ask(question, place.group, Some(place.slot)));
                samples.push((index, sample(self.tokenizer, question)?));
            }
        }
        let answers = self.answer(&asks)?;
        for ((index, sample), before) in samples.into_iter().zip(answers) {
            let samples = &mut self.ledger.running[index].samples;
            samples.push(AnswerSample { before, ..sample });
        }
        Ok(())
    }

    /// Completes the samples of running tasks that are at their end. All are answered side by side, and
    /// the base model answers a prompt once, whoever has it.
    pub(crate) fn ask_after(&mut self, tasks: &[TaskId]) -> Result<(), TrainerError> {
        let mut asks = Vec::new();
        let mut of_base = Vec::new();
        let mut samples: Vec<(usize, AnswerSample, Option<Key>)> = Vec::new();
        for (index, task, place) in self.asked(tasks) {
            for (number, question) in self.questions(task).enumerate() {
                let ask = self.ask(question, place.group, Some(place.slot));
                let key = (ask.prompt.clone(), ask.length);
                let mut sample = sample(self.tokenizer, question)?;
                let base = if task.config.init_from.is_none() {
                    if !self.answers.base.contains_key(&key) && !of_base.contains(&key) {
                        of_base.push(key.clone());
                    }
                    Some(key)
                } else {
                    match task.samples.get(number) {
                        Some(before) => sample.before.clone_from(&before.before),
                        // It began when fewer were asked for.
                        None => break,
                    }
                    None
                };
                asks.push(ask);
                samples.push((index, sample, base));
            }
        }
        for &id in tasks {
            if let Some(index) = self.ledger.index_of(id) {
                self.ledger.running[index].samples.clear();
            }
        }
        if asks.is_empty() {
            return Ok(());
        }
        let adapters = tasks.iter().filter_map(|&id| self.name_of(id)).collect();
        self.ledger.emit(Event::Answers { adapters });
        // The base model is asked beside an adapter with the same prompt.
        let beside = of_base.iter().filter_map(|(prompt, length)| {
            let same = |ask: &&Ask| ask.prompt == *prompt && ask.length == *length;
            let ask = asks.iter().find(same)?.clone();
            Some(Ask { slot: None, ..ask })
        });
        let beside: Vec<Ask> = beside.collect();
        asks.extend(beside);
        let mut answers = self.answer(&asks)?;
        let base = answers.split_off(samples.len());
        self.answers.base.extend(of_base.into_iter().zip(base));
        for ((index, mut sample, base), after) in samples.into_iter().zip(answers) {
            if let Some(before) = base.and_then(|key| self.answers.base.get(&key)) {
                sample.before.clone_from(before);
            }
            let samples = &mut self.ledger.running[index].samples;
            samples.push(AnswerSample { after, ..sample });
        }
        Ok(())
    }

    /// Those of the tasks that run and are to be asked.
    fn asked(&self, tasks: &[TaskId]) -> impl Iterator<Item = (usize, &TrainingTask, Place)> {
        let adapters = self.answers.asked.adapters as u64;
        let asked = tasks.iter().filter(move |id| id.0 < adapters);
        let running = asked.filter_map(|&id| self.ledger.index_of(id));
        running.map(|index| (index, &self.ledger.running[index], self.ledger.place(index)))
    }

    fn questions<'t>(
        &self,
        task: &'t TrainingTask,
    ) -> impl Iterator<Item = Question<'t>> + use<'t> {
        let questions = task.sample_rows().iter().map(Question::of);
        let short = questions.filter(|question| question.reference.len() <= LONGEST_REFERENCE);
        short.take(self.answers.asked.rows)
    }

    fn ask(&self, question: Question<'_>, group: usize, slot: Option<usize>) -> Ask {
        let context = self.pipeline.config().max_position_embeddings;
        let room = context.saturating_sub(question.prompt.len());
        Ask {
            group,
            slot,
            prompt: question.prompt.to_vec(),
            length: (question.reference.len() + SLACK).min(room),
        }
    }

    /// The answers, in the order of what was asked.
    fn answer(&self, asks: &[Ask]) -> Result<Vec<String>, TrainerError> {
        let mut together: BTreeMap<(usize, &[u32], usize), Vec<usize>> = BTreeMap::new();
        for (index, ask) in asks.iter().enumerate() {
            let key = (ask.group, ask.prompt.as_slice(), ask.length);
            together.entry(key).or_default().push(index);
        }
        let mut texts = vec![String::new(); asks.len()];
        for ((group, prompt, length), indices) in together {
            let at_once = (SIDE_BY_SIDE / prompt.len().max(1)).max(1);
            for indices in indices.chunks(at_once) {
                let slots: Vec<Option<usize>> =
                    indices.iter().map(|&index| asks[index].slot).collect();
                let answers = decode(
                    &self.pipeline,
                    prompt,
                    (group, &slots),
                    self.tokenizer.eos_ids(),
                    length,
                    &mut vec![Sampler::greedy(); slots.len()],
                )?;
                for (&index, answer) in indices.iter().zip(answers) {
                    texts[index] = self.tokenizer.decode(&answer, true)?;
                }
            }
        }
        Ok(texts)
    }
}

impl<'a> Question<'a> {
    /// A sample up to its first target, and its targets from there on.
    fn of(sample: &'a Sample) -> Self {
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
        Self {
            prompt: &sample.ids[..start],
            reference: &sample.ids[start..start + length],
        }
    }
}

/// A question as text, without answers.
fn sample(tokenizer: &Tokenizer, question: Question<'_>) -> Result<AnswerSample, TrainerError> {
    Ok(AnswerSample {
        prompt: readable(tokenizer, question.prompt)?,
        reference: tokenizer.decode(question.reference, true)?,
        before: String::new(),
        after: String::new(),
    })
}

/// The text of tokens. Special ones are left out; what they separate stands on lines of its own.
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
        // Templates have line ends beside special tokens, too.
        let text = text.trim_matches('\n');
        if !text.is_empty() {
            texts.push(text.to_owned());
        }
    }
    Ok(texts.join("\n"))
}
