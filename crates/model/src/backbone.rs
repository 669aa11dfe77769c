use std::{collections::HashSet, ops::Range};

use batchlora::{BatchLora, FrozenWeight, LoraPair};
use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    tensor::{Device, FloatDType, Int, Tensor, TensorData},
};

use crate::{
    Checkpoint, DecoderLayer, LanguageModelHead, LlamaConfig, ModelError, Projection,
    head::HEAD_PART, load::Loader,
};

/// A contiguous part of the frozen model: all of it, or the layers of one pipeline stage.
#[derive(Module, Debug)]
pub struct Backbone {
    embedding: Option<Param<Tensor<2>>>,
    layers: Vec<DecoderLayer>,
    head: Option<LanguageModelHead>,
    #[module(skip)]
    embedding_multiplier: Option<f64>,
}

impl Backbone {
    /// Reads decoder layers `layers` of a checkpoint onto a device, tensor by tensor, with the embedding if
    /// they include the first layer and the head if they include the last.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape or type than the configuration says.
    pub fn load(
        checkpoint: &Checkpoint,
        config: &LlamaConfig,
        layers: Range<usize>,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, ModelError> {
        Self::load_from(Some(checkpoint), config, layers, dtype, device)
    }

    /// Decoder layers `layers` with random weights, uniform with deviation 0.02, and norms of ones: for
    /// measuring speed without a checkpoint. Weights come from the device's generator.
    ///
    /// # Errors
    /// The type is [`load`](Self::load)'s; nothing fails here.
    pub fn random(
        config: &LlamaConfig,
        layers: Range<usize>,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, ModelError> {
        Self::load_from(None, config, layers, dtype, device)
    }

    fn load_from(
        checkpoint: Option<&Checkpoint>,
        config: &LlamaConfig,
        layers: Range<usize>,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let loader = Loader {
            checkpoint,
            dtype,
            device: &device.clone().without_autodiff(),
        };
        let table = |name: &str| loader.table(config, name, [config.vocab_size, config.d_model]);
        let mut embedding = None;
        if layers.start == 0 {
            embedding = Some(table("model.embed_tokens.weight")?);
        }
        let mut head = None;
        if layers.end == config.num_hidden_layers {
            let weight = if config.tie_word_embeddings {
                let table = match &embedding {
                    Some(embedding) => embedding.clone(),
                    None => table("model.embed_tokens.weight")?,
                };
                let transposed = table.val().transpose();
                FrozenWeight::Dense(Param::initialized(table.id, transposed))
            } else {
                let shape = [config.vocab_size, config.d_model];
                let weight = loader.weight(config, Projection::LmHead.path(), shape)?;
                weight.in_parts(HEAD_PART)
            };
            let norm = loader.norm("model.norm.weight", config.d_model, config)?;
            head = Some(LanguageModelHead {
                norm,
                weight,
                multiplier: config.multipliers.logits,
                softcap: config.logit_softcap,
            });
        }
        let layers = layers.map(|index| DecoderLayer::load(loader, config, index));
        Ok(Self {
            embedding,
            layers: layers.collect::<Result<_, _>>()?,
            head,
            embedding_multiplier: config.multipliers.embedding,
        })
    }

    /// Embeddings `[tokens, d_model]` of token ids, with the adapters of their rows; `None` if this part does not begin
    /// the model.
    pub fn embed(&self, ids: &[u32], adapters: Option<&BatchLora>) -> Option<Tensor<2>> {
        let weight = self.embedding.as_ref()?.val();
        let ids = token_ids(ids, &weight.device());
        let mut embedded = weight.select(0, ids.clone());
        if let Some(adapters) = adapters {
            embedded = adapters.add_embedded(embedded, &ids);
        }
        // transformers rounds the factor to the type of the weights, too.
        Some(self.multiplied(embedded))
    }

    /// The gradient of the adapters of [`embed`](Self::embed) for that of its output, `[tokens, d_model]`.
    pub fn embedding_gradient(
        &self,
        ids: &[u32],
        adapters: &BatchLora,
        gradient: Tensor<2>,
    ) -> LoraPair {
        let ids = token_ids(ids, &gradient.device());
        adapters.embedded_gradient(&self.multiplied(gradient), &ids)
    }

    fn multiplied(&self, x: Tensor<2>) -> Tensor<2> {
        match self.embedding_multiplier {
            Some(multiplier) => x.mul_scalar(multiplier),
            None => x,
        }
    }

    /// Bytes of all weights in memory, a tied embedding once.
    pub fn weight_bytes(&self) -> u64 {
        let mut weights = WeightBytes::default();
        self.visit(&mut weights);
        weights.bytes
    }

    /// The weight of a linear layer of this part, `[d_in, d_out]`: one of `layer`'s, or the output projection.
    pub fn weight(&self, layer: &DecoderLayer, projection: Projection) -> Option<Tensor<2>> {
        match projection {
            Projection::LmHead => Some(self.head.as_ref()?.weight.dense()),
            Projection::EmbedTokens => None,
            _ => layer.weight(projection),
        }
    }

    /// The decoder layers of this part.
    pub fn layers(&self) -> &[DecoderLayer] {
        &self.layers
    }

    /// The head; `None` if this part does not end the model.
    pub fn head(&self) -> Option<&LanguageModelHead> {
        self.head.as_ref()
    }
}

fn token_ids(ids: &[u32], device: &Device) -> Tensor<1, Int> {
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let count = ids.len();
    Tensor::from_data(TensorData::new(ids, [count]), device)
}

/// Counts parameters, each once.
#[derive(Default)]
struct WeightBytes {
    seen: HashSet<ParamId>,
    bytes: u64,
}

impl ModuleVisitor for WeightBytes {
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        if self.seen.insert(param.id) {
            let codes = param.val();
            self.bytes += (codes.shape().num_elements() * codes.dtype().size()) as u64;
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.seen.insert(param.id) {
            let weight = param.val();
            self.bytes += (weight.shape().num_elements() * weight.dtype().size()) as u64;
        }
    }
}
