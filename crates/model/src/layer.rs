use batchlora::{BatchLoraError, FrozenWeight, frozen_linear};
use burn::{
    module::{Module, Param},
    nn::RmsNorm,
    tensor::{DType, Tensor},
};

use crate::{
    AttentionShape, BlockTables, LayerCache, LayerLora, LayerRotation, LlamaConfig, ModelError,
    Projection, RotaryRows, SequenceBatch,
    load::Loader,
    ops::{Activation, glu, rms_norm, rotate, self_attention},
};

/// One decoder layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`, with the norms where the
/// configuration has them.
#[derive(Module, Debug)]
pub struct DecoderLayer {
    attention_norms: Norms,
    qkv: QkvProjections,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    o_proj: FrozenLinear,
    mlp_norms: Norms,
    gate_up: GateUpProjections,
    down_proj: FrozenLinear,
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
    score_scale: Option<f64>,
    #[module(skip)]
    residual_multiplier: Option<f64>,
}

/// A linear layer without adapters.
#[derive(Module, Debug)]
pub(crate) struct FrozenLinear {
    pub(crate) weight: FrozenWeight,
    pub(crate) bias: Option<Param<Tensor<1>>>,
}

/// `q_proj`, `k_proj` and `v_proj`, or `qkv_proj`.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one in a layer")]
enum QkvProjections {
    Apart([FrozenLinear; 3]),
    Fused(FrozenLinear),
}

/// `gate_proj` and `up_proj`, or `gate_up_proj`.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one in a layer")]
enum GateUpProjections {
    Apart([FrozenLinear; 2]),
    Fused(FrozenLinear),
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
        let linear = |projection| loader.linear(config, projection, index);
        let qkv = if config.fused {
            QkvProjections::Fused(linear(Projection::Qkv)?)
        } else {
            QkvProjections::Apart([
                linear(Projection::Q)?,
                linear(Projection::K)?,
                linear(Projection::V)?,
            ])
        };
        let gate_up = if config.fused {
            GateUpProjections::Fused(linear(Projection::GateUp)?)
        } else {
            GateUpProjections::Apart([linear(Projection::Gate)?, linear(Projection::Up)?])
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
            qkv,
            q_norm: head_norm("self_attn.q_norm.weight", config.num_attention_heads)?,
            k_norm: head_norm("self_attn.k_norm.weight", config.num_key_value_heads)?,
            o_proj: linear(Projection::O)?,
            mlp_norms: norms(config.norms.of_mlp())?,
            gate_up,
            down_proj: linear(Projection::Down)?,
            num_heads: config.num_attention_heads,
            num_kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            window: config.sliding_window[index],
            softcap: config.attention_softcap,
            activation: config.activation,
            rotation: config.rotations[index],
            score_scale: config.score_scale,
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
        self.forward_observed(x, batch, lora, &mut |_, _| ())
    }

    /// As [`forward`](Self::forward). `see` is called with the input of each projection.
    ///
    /// # Errors
    /// If the adapters do not fit x.
    pub fn forward_observed(
        &self,
        x: Tensor<2>,
        batch: &SequenceBatch,
        lora: &LayerLora,
        see: &mut dyn FnMut(Projection, &Tensor<2>),
    ) -> Result<Tensor<2>, BatchLoraError> {
        let shape = self.attention_shape(batch);
        let attend = |q, k, v| self_attention(q, k, v, &shape);
        self.decode(x, batch, lora, attend, see)
    }

    /// The layer over the next tokens of sequences whose past is in `cache`: x and output `[rows, d_model]`.
    ///
    /// # Errors
    /// If the adapters do not fit x.
    ///
    /// # Panics
    /// If the tables do not [fit](BlockTables::check) the batch and the cache.
    pub fn forward_cached(
        &self,
        x: Tensor<2>,
        batch: &SequenceBatch,
        lora: &LayerLora,
        cache: &mut LayerCache,
        tables: &BlockTables,
    ) -> Result<Tensor<2>, BatchLoraError> {
        let shape = self.attention_shape(batch);
        let attend = |q, k, v| cache.attend(q, k, v, &shape, tables);
        self.decode(x, batch, lora, attend, &mut |_, _| ())
    }

    pub(crate) fn weight(&self, projection: Projection) -> Option<Tensor<2>> {
        let linear = match (projection, &self.qkv, &self.gate_up) {
            (Projection::Q, QkvProjections::Apart([q, _, _]), _) => q,
            (Projection::K, QkvProjections::Apart([_, k, _]), _) => k,
            (Projection::V, QkvProjections::Apart([_, _, v]), _) => v,
            (Projection::Qkv, QkvProjections::Fused(qkv), _) => qkv,
            (Projection::O, ..) => &self.o_proj,
            (Projection::Gate, _, GateUpProjections::Apart([gate, _])) => gate,
            (Projection::Up, _, GateUpProjections::Apart([_, up])) => up,
            (Projection::GateUp, _, GateUpProjections::Fused(gate_up)) => gate_up,
            (Projection::Down, ..) => &self.down_proj,
            _ => return None,
        };
        Some(linear.weight.dense())
    }

    fn attention_shape(&self, batch: &SequenceBatch) -> AttentionShape {
        AttentionShape {
            sequences: batch.sequences.clone(),
            num_heads: self.num_heads,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            score_scale: self.score_scale,
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
        see: &mut dyn FnMut(Projection, &Tensor<2>),
    ) -> Result<Tensor<2>, BatchLoraError> {
        let mut project = |projection: Projection, linear: &FrozenLinear, x: Tensor<2>| {
            see(projection, &x);
            let weight = linear.weight.clone();
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
                Some(rows) => rotate_heads(x, rows, self.head_dim),
                None => x,
            }
        };
        let add = |x: Tensor<2>, y: Tensor<2>, norms: &Norms| {
            x + scaled(
                normalise_if(y, norms.after.as_ref()),
                self.residual_multiplier,
            )
        };

        let normal = normalise_if(x.clone(), self.attention_norms.before.as_ref());
        let [q, k, v] = match &self.qkv {
            QkvProjections::Apart([q, k, v]) => [
                project(Projection::Q, q, normal.clone())?,
                project(Projection::K, k, normal.clone())?,
                project(Projection::V, v, normal)?,
            ],
            QkvProjections::Fused(linear) => {
                let key = self.num_kv_heads * self.head_dim;
                let widths = [self.num_heads * self.head_dim, key, key];
                parts(&project(Projection::Qkv, linear, normal)?, widths)
            }
        };
        let q = turn(q, &self.q_norm);
        let k = turn(k, &self.k_norm);
        let attended = project(Projection::O, &self.o_proj, attend(q, k, v))?;
        let x = add(x, attended, &self.attention_norms);

        let normal = normalise_if(x.clone(), self.mlp_norms.before.as_ref());
        let [gate, up] = match &self.gate_up {
            GateUpProjections::Apart([gate, up]) => [
                project(Projection::Gate, gate, normal.clone())?,
                project(Projection::Up, up, normal)?,
            ],
            GateUpProjections::Fused(linear) => {
                let both = project(Projection::GateUp, linear, normal)?;
                let width = both.dims()[1] / 2;
                parts(&both, [width; 2])
            }
        };
        let down = project(
            Projection::Down,
            &self.down_proj,
            glu(gate, up, self.activation),
        )?;
        Ok(add(x, down, &self.mlp_norms))
    }
}

/// Columns of x, in parts of these widths.
fn parts<const N: usize>(x: &Tensor<2>, widths: [usize; N]) -> [Tensor<2>; N] {
    let mut start = 0;
    widths.map(|width| {
        start += width;
        x.clone().narrow(1, start - width, width)
    })
}

/// Rotates the first features of every head, as many as the tables have.
fn rotate_heads(x: Tensor<2>, rows: &RotaryRows, head_dim: usize) -> Tensor<2> {
    let (cos, sin) = (rows.cos.clone(), rows.sin.clone());
    let ([count, width], rotary_dim) = (x.dims(), 2 * cos.dims()[1]);
    if rotary_dim == head_dim {
        return rotate(x, cos, sin);
    }
    let heads = width / head_dim;
    let x = x.reshape([count, heads, head_dim]);
    let rotated = x.clone().narrow(2, 0, rotary_dim);
    let rotated = rotate(rotated.reshape([count, heads * rotary_dim]), cos, sin);
    let rotated = rotated.reshape([count, heads, rotary_dim]);
    let rest = x.narrow(2, rotary_dim, head_dim - rotary_dim);
    Tensor::cat(vec![rotated, rest], 2).reshape([count, width])
}

/// Normalises groups of features as wide as the norm: one head, or all of them.
fn normalise_groups(x: Tensor<2>, norm: &RmsNorm) -> Tensor<2> {
    let ([rows, width], [group]) = (x.dims(), norm.gamma.dims());
    let groups = x.reshape([rows * width / group, group]);
    normalise(groups, norm).reshape([rows, width])
}

fn normalise_if(x: Tensor<2>, norm: Option<&RmsNorm>) -> Tensor<2> {
    match norm {
        Some(norm) => normalise(x, norm),
        None => x,
    }
}

/// Multiplies in `float32`: in half precision the factor would be rounded to the type of x.
pub(crate) fn scaled(x: Tensor<2>, multiplier: Option<f64>) -> Tensor<2> {
    let Some(multiplier) = multiplier else {
        return x;
    };
    let dtype = x.dtype();
    x.cast(DType::F32).mul_scalar(multiplier).cast(dtype)
}

pub(crate) fn normalise(x: Tensor<2>, norm: &RmsNorm) -> Tensor<2> {
    rms_norm(x, norm.gamma.val(), norm.epsilon)
}
