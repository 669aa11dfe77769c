use std::path::{Path, PathBuf};

use batchlora::{Segment, Segments};
use burn::tensor::Device;
use loraloom_config::DtypeChoice;
use loraloom_data::{Message, Tokenizer};
use loraloom_model::{Checkpoint, LlamaConfig, PeftAdapter, SequenceBatch, Sequences, to_host};
use loraloom_pipeline::{Microbatch, Stage};

use crate::{
    GenerateOptions, TrainerError, adapter, decode::decode, dtype::resolve_dtype, sampling::Sampler,
};

/// A base model with adapters beside it, for asking it things.
#[derive(Debug)]
pub struct Generator {
    stage: Stage,
    config: LlamaConfig,
    tokenizer: Tokenizer,
}

impl Generator {
    /// Reads a model directory and PEFT directories onto a device.
    ///
    /// # Errors
    /// If a file is missing, damaged, or an adapter does not fit the model.
    pub fn load(
        model: &Path,
        dtype: DtypeChoice,
        adapters: &[PathBuf],
        device: &Device,
    ) -> Result<Self, TrainerError> {
        let config = LlamaConfig::from_directory(model)?;
        let checkpoint = Checkpoint::open(model)?;
        checkpoint.verify(&config)?;
        let tokenizer = Tokenizer::load(model)?;
        let dtype = resolve_dtype(dtype, device, &checkpoint)?;
        let layers = 0..config.num_hidden_layers;
        let mut stage = Stage::load(&checkpoint, &config, layers, dtype, device)?;
        for directory in adapters {
            let peft = PeftAdapter::load(directory)?;
            stage.push(adapter::from_peft(&peft, 0.0, &config, device)?)?;
        }
        Ok(Self {
            stage,
            config,
            tokenizer,
        })
    }

    /// Logits of every token, `[tokens, vocabulary]` row by row, with an adapter given to
    /// [`load`](Self::load) by its index or the base model alone.
    ///
    /// # Errors
    /// If there are no tokens, or the device fails.
    pub fn logits(&self, ids: &[u32], who: Option<usize>) -> Result<Vec<f32>, TrainerError> {
        if ids.is_empty() {
            return Err(TrainerError::EmptyPrompt);
        }
        let rows = 0..ids.len();
        let segments = who.map(|slot| Segment { rows, slot }).into_iter().collect();
        let sequences = Sequences::from_lengths([ids.len()]);
        let device = self.stage.device();
        let microbatch = Microbatch {
            batch: SequenceBatch::new(&self.config, sequences, &[ids.len()], device),
            segments: Segments::new(ids.len(), segments)?,
            draws: None,
        };
        let hidden = self.stage.infer(self.stage.embed(ids)?, &microbatch)?;
        Ok(to_host(self.stage.logits(hidden)?)?)
    }

    /// Continues the prompt once for each entry of `who`, an index into the adapters given to
    /// [`load`](Self::load) or `None` for the base model, all in one batch.
    ///
    /// # Errors
    /// If the prompt is empty or too long, or there is no chat template to put it in.
    pub fn generate(
        &self,
        prompt: &str,
        who: &[Option<usize>],
        options: &GenerateOptions,
    ) -> Result<Vec<String>, TrainerError> {
        let ids = if options.chat {
            let template =
                self.tokenizer
                    .chat_template()
                    .ok_or_else(|| TrainerError::NoChatTemplate {
                        path: self.tokenizer.directory().to_owned(),
                    })?;
            let text = template.render(&[Message::new("user", prompt)], true)?;
            self.tokenizer.encode_prompt(&text)?
        } else {
            self.tokenizer.encode_prompt(prompt)?
        };
        let mut samplers = vec![Sampler::new(options); who.len()];
        let answers = decode(
            &self.stage,
            &self.config,
            &ids,
            who,
            self.tokenizer.eos_ids(),
            options.max_new_tokens,
            &mut samplers,
        )?;
        answers
            .iter()
            .map(|ids| Ok(self.tokenizer.decode(ids, true)?))
            .collect()
    }
}
