use batchlora::{BatchLoraError, frozen_linear};
use burn::{
    module::Module,
    nn::{Linear, RmsNorm},
    tensor::Tensor,
};

use crate::{
    AttentionShape, LayerCache, LayerLora, LlamaConfig, ModelError, Projection, SequenceBatch,
    load::Loader,
    ops::{rms_norm, rotate, self_attention, swiglu},
};

/// One decoder layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`.
#[derive(Module, Debug)]
pub struct DecoderLayer {
    input_layernorm: RmsNorm,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    o_proj: Linear,
    post_attention_layernorm: RmsNorm,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    #[module(skip)]
    num_heads: usize,
    #[module(skip)]
    num_kv_heads: usize,
    #[module(skip)]
    head_dim: usize,
    #[module(skip)]
    window: Option<usize>,
}

impl DecoderLayer {
    pub(crate) fn load(
        loader: Loader<'_>,
        config: &LlamaConfig,
        index: usize,
    ) -> Result<Self, ModelError> {
        let shapes = config.linears();
        let linear = |projection: Projection| {
            loader.linear(&projection.module(index), &shapes[projection as usize])
        };
        let norm = |name: &str, width: usize| {
            let name = format!("model.layers.{index}.{name}");
            loader.norm(&name, width, config.rms_norm_eps)
        };
        let head_norm = |name: &str| {
            let norm = config.qk_norm.then(|| norm(name, config.head_dim));
            norm.transpose()
        };
        Ok(Self {
            input_layernorm: norm("input_layernorm.weight", config.d_model)?,
            q_proj: linear(Projection::Q)?,
            k_proj: linear(Projection::K)?,
            v_proj: linear(Projection::V)?,
            q_norm: head_norm("self_attn.q_norm.weight")?,
            k_norm: head_norm("self_attn.k_norm.weight")?,
            o_proj: linear(Projection::O)?,
            post_attention_layernorm: norm("post_attention_layernorm.weight", config.d_model)?,
            gate_proj: linear(Projection::Gate)?,
            up_proj: linear(Projection::Up)?,
            down_proj: linear(Projection::Down)?,
            num_heads: config.num_attention_heads,
            num_kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            window: config.sliding_window[index],
        })
    }

    /// The layer over whole sequences: x and output `[rows, d_model]`.
    ///
    /// # Errors
    /// If the adapters do not fit x.
    pub fn forward(
        &self,
        x: Tensor<2>,
        batch: &SequenceBatch,
        lora: &LayerLora,
    ) -> Result<Tensor<2>, BatchLoraError> {
        let shape = self.attention_shape(batch);
        self.decode(x, batch, lora, |q, k, v| self_attention(q, k, v, &shape))
    }

    /// The layer over the next tokens of sequences whose past is in `cache`, all sequences by the
    /// same number of tokens: x and output `[sequences · tokens, d_model]`.
    ///
    /// # Errors
    /// If the adapters do not fit x.
    pub fn forward_cached(
        &self,
        x: Tensor<2>,
        batch: &SequenceBatch,
        lora: &LayerLora,
        cache: &mut LayerCache,
    ) -> Result<Tensor<2>, BatchLoraError> {
        let shape = self.attention_shape(batch);
        self.decode(x, batch, lora, |q, k, v| cache.attend(q, k, v, &shape))
    }

    fn attention_shape(&self, batch: &SequenceBatch) -> AttentionShape {
        AttentionShape {
            sequences: batch.sequences.clone(),
            num_heads: self.num_heads,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            window: self.window,
        }
    }

    fn decode(
        &self,
        x: Tensor<2>,
        batch: &SequenceBatch,
        lora: &LayerLora,
        attend: impl FnOnce(Tensor<2>, Tensor<2>, Tensor<2>) -> Tensor<2>,
    ) -> Result<Tensor<2>, BatchLoraError> {
        let project = |projection: Projection, linear: &Linear, x: Tensor<2>| {
            let weight = linear.weight.val();
            let y = match lora.part(projection) {
                Some(lora) => lora.forward(x, weight)?,
                None => frozen_linear(x, weight),
            };
            Ok::<_, BatchLoraError>(match &linear.bias {
                Some(bias) => y + bias.val().unsqueeze(),
                None => y,
            })
        };
        let turn = |x: Tensor<2>, norm: &Option<RmsNorm>| {
            let x = match norm {
                Some(norm) => self.normalise_heads(x, norm),
                None => x,
            };
            rotate(x, batch.cos.clone(), batch.sin.clone())
        };

        let normal = normalise(x.clone(), &self.input_layernorm);
        let q = project(Projection::Q, &self.q_proj, normal.clone())?;
        let q = turn(q, &self.q_norm);
        let k = project(Projection::K, &self.k_proj, normal.clone())?;
        let k = turn(k, &self.k_norm);
        let v = project(Projection::V, &self.v_proj, normal)?;
        let x = x + project(Projection::O, &self.o_proj, attend(q, k, v))?;

        let normal = normalise(x.clone(), &self.post_attention_layernorm);
        let gate = project(Projection::Gate, &self.gate_proj, normal.clone())?;
        let up = project(Projection::Up, &self.up_proj, normal)?;
        Ok(x + project(Projection::Down, &self.down_proj, swiglu(gate, up))?)
    }

    fn normalise_heads(&self, x: Tensor<2>, norm: &RmsNorm) -> Tensor<2> {
        let [rows, width] = x.dims();
        let heads = x.reshape([rows * width / self.head_dim, self.head_dim]);
        normalise(heads, norm).reshape([rows, width])
    }
}

pub(crate) fn normalise(x: Tensor<2>, norm: &RmsNorm) -> Tensor<2> {
    rms_norm(x, norm.gamma.val(), norm.epsilon)
}
