use batchlora::{BatchLoraError, frozen_linear};
use burn::{
    module::Module,
    nn::{Linear, RmsNorm},
    tensor::Tensor,
};

use crate::{
    AttentionShape, LayerCache, LayerLora, LayerRotation, LlamaConfig, ModelError, Projection,
    SequenceBatch,
    load::Loader,
    ops::{Activation, glu, rms_norm, rotate, self_attention},
};

/// One decoder layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`, with the norms where the
/// configuration has them.
#[derive(Module, Debug)]
pub struct DecoderLayer {
    attention_norms: Norms,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    o_proj: Linear,
    mlp_norms: Norms,
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
    #[module(skip)]
    softcap: Option<f32>,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    rotation: LayerRotation,
    #[module(skip)]
    query_multiplier: Option<f64>,
    #[module(skip)]
    residual_multiplier: Option<f64>,
}

/// Norms of what attention or feed-forward takes, and of what it gives.
#[derive(Module, Debug)]
struct Norms {
    before: Option<RmsNorm>,
    after: Option<RmsNorm>,
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
            loader.norm(&name, width, config)
        };
        let norms = |names: [Option<&str>; 2]| {
            let [before, after] =
                names.map(|name| name.map(|name| norm(&format!("{name}.weight"), config.d_model)));
            Ok::<_, ModelError>(Norms {
                before: before.transpose()?,
                after: after.transpose()?,
            })
        };
        let head_norm =
            |name: &str, heads: usize| match config.qk_norm.width(heads, config.head_dim) {
                0 => Ok(None),
                width => norm(name, width).map(Some),
            };
        Ok(Self {
            attention_norms: norms(config.norms.of_attention())?,
            q_proj: linear(Projection::Q)?,
            k_proj: linear(Projection::K)?,
            v_proj: linear(Projection::V)?,
            q_norm: head_norm("self_attn.q_norm.weight", config.num_attention_heads)?,
            k_norm: head_norm("self_attn.k_norm.weight", config.num_key_value_heads)?,
            o_proj: linear(Projection::O)?,
            mlp_norms: norms(config.norms.of_mlp())?,
            gate_proj: linear(Projection::Gate)?,
            up_proj: linear(Projection::Up)?,
            down_proj: linear(Projection::Down)?,
            num_heads: config.num_attention_heads,
            num_kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            window: config.sliding_window[index],
            softcap: config.attention_softcap,
            activation: config.activation,
            rotation: config.rotations[index],
            query_multiplier: config.multipliers.query,
            residual_multiplier: config.multipliers.residual,
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
            softcap: self.softcap,
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
                Some(norm) => normalise_groups(x, norm),
                None => x,
            };
            match batch.rotation(self.rotation) {
                Some(rows) => rotate(x, rows.cos.clone(), rows.sin.clone()),
                None => x,
            }
        };
        let add = |x: Tensor<2>, y: Tensor<2>, norms: &Norms| {
            x + scaled(normalise_if(y, &norms.after), self.residual_multiplier)
        };

        let normal = normalise_if(x.clone(), &self.attention_norms.before);
        let q = project(Projection::Q, &self.q_proj, normal.clone())?;
        let q = scaled(turn(q, &self.q_norm), self.query_multiplier);
        let k = project(Projection::K, &self.k_proj, normal.clone())?;
        let k = turn(k, &self.k_norm);
        let v = project(Projection::V, &self.v_proj, normal)?;
        let attended = project(Projection::O, &self.o_proj, attend(q, k, v))?;
        let x = add(x, attended, &self.attention_norms);

        let normal = normalise_if(x.clone(), &self.mlp_norms.before);
        let gate = project(Projection::Gate, &self.gate_proj, normal.clone())?;
        let up = project(Projection::Up, &self.up_proj, normal)?;
        let down = project(
            Projection::Down,
            &self.down_proj,
            glu(gate, up, self.activation),
        )?;
        Ok(add(x, down, &self.mlp_norms))
    }
}

/// Normalises groups of features as wide as the norm: one head, or all of them.
fn normalise_groups(x: Tensor<2>, norm: &RmsNorm) -> Tensor<2> {
    let ([rows, width], [group]) = (x.dims(), norm.gamma.dims());
    let groups = x.reshape([rows * width / group, group]);
    normalise(groups, norm).reshape([rows, width])
}

fn normalise_if(x: Tensor<2>, norm: &Option<RmsNorm>) -> Tensor<2> {
    match norm {
        Some(norm) => normalise(x, norm),
        None => x,
    }
}

pub(crate) fn scaled(x: Tensor<2>, multiplier: Option<f64>) -> Tensor<2> {
    match multiplier {
        Some(multiplier) => x.mul_scalar(multiplier),
        None => x,
    }
}

pub(crate) fn normalise(x: Tensor<2>, norm: &RmsNorm) -> Tensor<2> {
    rms_norm(x, norm.gamma.val(), norm.epsilon)
}
