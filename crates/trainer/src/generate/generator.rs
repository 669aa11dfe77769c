use std::path::{Path, PathBuf};

use burn::tensor::Device;
use loraloom_config::DtypeChoice;
use loraloom_data::{DataError, Message, Samples, Tokenizer};
use loraloom_inference::{BankSlot, EngineRequest, Generation, InferenceError};
use loraloom_model::{Checkpoint, LlamaConfig, PeftAdapter};
use loraloom_pipeline::Pipeline;

use super::{
    GenerateOptions,
    decode::{Limits, alone, complete},
    serving::inference_pipeline,
};
use crate::{
    Score, TrainerError, adapter::from_peft, batch::evaluate, error::Result,
    saved_adapter::load_adapter,
};

/// A base model with adapters, for inference.
#[derive(Debug)]
pub struct Generator {
    /// One stage; the adapters are its group 0.
    pipeline: Pipeline,
    tokenizer: Tokenizer,
    over_another_base: Vec<usize>,
}

impl Generator {
    /// Reads a model directory and PEFT directories onto a device. `config` is the model's; see
    /// [`model_config`](crate::model_config).
    ///
    /// # Errors
    /// If a file is missing, damaged, or changed since it was saved, or an adapter does not fit the model.
    pub fn load(
        model: &Path,
        config: &LlamaConfig,
        dtype: DtypeChoice,
        adapters: &[PathBuf],
        device: &Device,
    ) -> Result<Self> {
        let adapters = adapters.iter().map(|directory| {
            PeftAdapter::check_copies(directory, model)?;
            load_adapter(directory, Some(config))
        });
        let adapters: Vec<_> = adapters.collect::<Result<_>>()?;
        let mut generator = Self::with_adapters(model, config, dtype, &adapters, device)?;
        let digest = Checkpoint::open(model)?.digest(generator.pipeline.config())?;
        let others = adapters.iter().enumerate().filter(|(_, adapter)| {
            let base = adapter.base.as_ref();
            base.is_some_and(|base| *base != digest)
        });
        generator.over_another_base = others.map(|(index, _)| index).collect();
        Ok(generator)
    }

    /// Indices of the adapters given to [`load`](Self::load) whose recorded base differs from the model.
    pub fn over_another_base(&self) -> &[usize] {
        &self.over_another_base
    }

    /// As [`load`](Self::load), with adapters that are already read.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn with_adapters(
        model: &Path,
        config: &LlamaConfig,
        dtype: DtypeChoice,
        adapters: &[PeftAdapter],
        device: &Device,
    ) -> Result<Self> {
        let tokenizer = Tokenizer::load(model)?;
        let mut pipeline = inference_pipeline(model, config, dtype, device)?;
        for peft in adapters {
            pipeline.push(0, from_peft(peft, None, config, device)?)?;
        }
        Ok(Self {
            pipeline,
            tokenizer,
            over_another_base: Vec::new(),
        })
    }

    /// Logits of every token, `[tokens, vocabulary]` row by row, with an adapter given to
    /// [`load`](Self::load) by its index or the base model alone.
    ///
    /// # Errors
    /// If there are no tokens, or the device fails.
    pub fn logits(&self, ids: &[u32], who: Option<usize>) -> Result<Vec<f32>> {
        if ids.is_empty() {
            return Err(InferenceError::EmptyPrompt.into());
        }
        Ok(self.pipeline.logits(0, &alone(ids, who)?)?)
    }

    /// Ids of a text as a prompt.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, false)
    }

    /// Number of tokens that the context leaves after the prompt.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), except for the prompt's length.
    pub fn remaining_tokens(&self, prompt: &str, options: &GenerateOptions) -> Result<usize> {
        let context = self.pipeline.config().max_position_embeddings;
        Ok(context.saturating_sub(self.ids(prompt, options.chat)?.len()))
    }

    /// Continues the prompt once for each entry of `who`, an index into the adapters given to
    /// [`load`](Self::load) or `None` for the base model, all in one batch.
    ///
    /// # Errors
    /// If the prompt is empty or too long, or `chat` is set and there is no chat template.
    pub fn generate(
        &self,
        prompt: &str,
        who: &[Option<usize>],
        options: &GenerateOptions,
    ) -> Result<Vec<String>> {
        let ids = self.ids(prompt, options.chat)?;
        let mut texts = self.answers(&[&ids], who, options, who.len(), &mut |_| {})?;
        Ok(texts.swap_remove(0))
    }

    /// Scores rows with each of `who`, as validation in training does. At most
    /// `at_once` sequences are computed together; `done` is called with their number.
    ///
    /// # Errors
    /// If rows that exceed memory cannot be read, or the device fails.
    pub fn evaluate(
        &self,
        rows: &Samples,
        who: &[Option<usize>],
        at_once: usize,
        done: &mut dyn FnMut(usize),
    ) -> Result<Vec<Score>> {
        evaluate(&self.pipeline, rows, (0, who), at_once, 0.0, done)
    }

    /// Answers of each of `who` to every prompt, given as its tokens, whatever `options.chat` is. At most `at_once`
    /// are computed at a time; `done` is called with the number that have just ended. Returns the texts by prompt.
    ///
    /// # Errors
    /// If a prompt is empty or fills the context, or the device fails.
    pub fn answers(
        &self,
        prompts: &[&[u32]],
        who: &[Option<usize>],
        options: &GenerateOptions,
        at_once: usize,
        done: &mut dyn FnMut(usize),
    ) -> Result<Vec<Vec<String>>> {
        let generation = |slot: Option<usize>| Generation(slot.map_or(0, |slot| slot as u64 + 1));
        let place = |&slot: &Option<usize>| (generation(slot), BankSlot { group: 0, slot });
        let places = who.iter().map(place).collect();
        let request = |prompt: &[u32], slot: Option<usize>| EngineRequest {
            generation: generation(slot),
            prompt: prompt.to_vec(),
            sampling: options.sampling.clone(),
            max_tokens: options.max_new_tokens,
            stop: self.tokenizer.eos_ids().to_vec(),
            top_log_probs: 0,
            tenant: String::new(),
            weight: 1.0,
        };
        let requests = prompts
            .iter()
            .flat_map(|prompt| who.iter().map(|&who| request(prompt, who)));
        let limits = Limits {
            sequences: at_once,
            tokens: usize::MAX,
        };
        let answers = complete(&self.pipeline, &places, requests.collect(), limits, done)?;
        let texts = answers.chunks(who.len().max(1)).map(|answers| {
            let texts = answers
                .iter()
                .map(|answer| self.tokenizer.decode(answer, true));
            Ok(texts.collect::<Result<_, DataError>>()?)
        });
        texts.collect()
    }

    fn ids(&self, prompt: &str, chat: bool) -> Result<Vec<u32>> {
        if !chat {
            return Ok(self.tokenizer.encode_prompt(prompt)?);
        }
        let none = || TrainerError::NoChatTemplate {
            path: self.tokenizer.directory().to_owned(),
        };
        let template = self.tokenizer.chat_template().ok_or_else(none)?;
        let text = template.render(&[Message::new("user", prompt)], true)?;
        Ok(self.tokenizer.encode_prompt(&text)?)
    }
}
