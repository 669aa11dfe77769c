use std::path::Path;

use super::{
    architecture::Architecture,
    quantization::{Quantization, StoredFormat},
    resolve,
    rope::RopeConfig,
};
use crate::{
    Projection, checkpoint::TensorDtype, error::ModelError, files::read_text, ops::Activation,
};

/// A decoder of the Llama family, resolved from Hugging Face `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// Which of the supported classes it is.
    pub architecture: Architecture,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream (`hidden_size`).
    pub d_model: usize,
    /// Width inside the feed-forward block (`intermediate_size`).
    pub d_ffn: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f64,
    /// Longest sequence the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// The output projection is the embedding; `lm_head.weight` is not stored.
    pub tie_word_embeddings: bool,
    /// Queries, keys and values are one linear layer, gate and up-projection another (Phi-3).
    pub fused: bool,
    /// `q_proj`, `k_proj` and `v_proj` have a bias.
    pub qkv_bias: bool,
    /// `o_proj` has a bias.
    pub output_bias: bool,
    /// `gate_proj`, `up_proj` and `down_proj` have a bias.
    pub mlp_bias: bool,
    /// RMS norm of queries and keys before the rotation.
    pub qk_norm: QkNorm,
    /// Place of the RMS norms of attention and feed-forward.
    pub norms: NormPlacement,
    /// Constant factors of activations.
    pub multipliers: Multipliers,
    /// Norms multiply by 1 + weight (Gemma).
    pub norm_plus_one: bool,
    /// Activation of the feed-forward block's gate.
    pub activation: Activation,
    /// Scale of the scores of attention; `None` is `1 / sqrt(head_dim)`.
    pub score_scale: Option<f64>,
    /// Bound on the scores of attention: `cap · tanh(score / cap)`.
    pub attention_softcap: Option<f32>,
    /// The same bound on the logits.
    pub logit_softcap: Option<f32>,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// That of layers whose rotation is local (Gemma 3).
    pub local_rope: Option<RopeConfig>,
    /// The rotation of each layer.
    pub rotations: Vec<LayerRotation>,
    /// For each layer the number of tokens one sees, itself included; `None` is all before it.
    pub sliding_window: Vec<Option<usize>>,
    /// Token that begins a sequence, if the model has one.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a sequence; may be empty.
    pub eos_token_ids: Vec<u32>,
    /// Type the checkpoint says its weights have.
    pub dtype: Option<TensorDtype>,
    /// How the checkpoint was quantised, if it was.
    pub stored: Option<StoredFormat>,
    /// Storage of linear layers, if it is not in floating point. Those that the checkpoint has in floating point are
    /// quantised when they are read.
    pub quantization: Option<Quantization>,
    /// Dropout by key that transformers applies in training, and this crate does not.
    pub dropout: Vec<(&'static str, f64)>,
}

/// RMS norm of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Over the features of one head; all heads share the weight (Qwen 3, Gemma 3).
    PerHead,
    /// Over the features of all heads together (OLMo 2).
    AllHeads,
}

impl QkNorm {
    /// Number of weights of a norm over heads of this width; 0 without a norm.
    pub fn width(self, heads: usize, head_dim: usize) -> usize {
        match self {
            Self::None => 0,
            Self::PerHead => head_dim,
            Self::AllHeads => heads * head_dim,
        }
    }
}

/// Rotation of queries and keys in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerRotation {
    /// None (`SmolLM3`).
    None,
    /// By [`LlamaConfig::rope`].
    Global,
    /// By [`LlamaConfig::local_rope`].
    Local,
}

/// Place of the norms around a branch f, attention or feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// `x + f(norm(x))`: Llama.
    Before,
    /// `x + norm(f(x))`: OLMo 2.
    After,
    /// `x + norm(f(norm(x)))`: Gemma.
    Both,
}

impl NormPlacement {
    /// The names of the norms before and after attention.
    pub fn of_attention(self) -> [Option<&'static str>; 2] {
        match self {
            Self::Before => [Some("input_layernorm"), None],
            Self::After => [None, Some("post_attention_layernorm")],
            Self::Both => [Some("input_layernorm"), Some("post_attention_layernorm")],
        }
    }

    /// The names of the norms before and after the feed-forward block.
    pub fn of_mlp(self) -> [Option<&'static str>; 2] {
        match self {
            Self::Before => [Some("post_attention_layernorm"), None],
            Self::After => [None, Some("post_feedforward_layernorm")],
            Self::Both => [
                Some("pre_feedforward_layernorm"),
                Some("post_feedforward_layernorm"),
            ],
        }
    }
}

/// Constant factors of activations (Granite, Gemma); `None` is 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Multipliers {
    /// Of the embeddings.
    pub embedding: Option<f64>,
    /// Of the outputs of attention and feed-forward, before they are added to the residual stream.
    pub residual: Option<f64>,
    /// Of the logits.
    pub logits: Option<f64>,
}

/// One of the linear layers of every decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape {
    /// Which one it is.
    pub projection: Projection,
    /// Input features.
    pub d_in: usize,
    /// Output features.
    pub d_out: usize,
    /// It has a bias.
    pub bias: bool,
}

impl LlamaConfig {
    /// Resolves `config.json` in `directory`.
    ///
    /// # Errors
    /// If the file cannot be read, names an unsupported architecture or option, or its numbers
    /// contradict each other.
    pub fn from_directory(directory: &Path) -> Result<Self, ModelError> {
        let path = directory.join("config.json");
        if !path.exists() && directory.join("adapter_config.json").exists() {
            return Err(ModelError::AdapterAsBase(directory.into()));
        }
        Self::from_json(&read_text(&path)?).map_err(|error| error.in_file(path))
    }

    /// Resolves the text of a `config.json`.
    ///
    /// # Errors
    /// As [`from_directory`](Self::from_directory), without the path.
    pub fn from_json(text: &str) -> Result<Self, ModelError> {
        resolve::resolve(text)
    }

    /// The linear layers of every decoder layer, in the order they are applied.
    pub fn linears(&self) -> Vec<LinearShape> {
        let linear = |&projection: &Projection| self.shape(projection);
        Projection::applied(self.fused).iter().map(linear).collect()
    }

    /// All modules of decoder layer `layer` that adapters adapt; see [`Projection`].
    pub fn modules(&self, layer: usize) -> Vec<LinearShape> {
        let ends = Projection::ENDS.into_iter();
        let ends = ends.filter(|end| end.is_at(layer, self.num_hidden_layers));
        let mut modules = self.linears();
        modules.extend(ends.map(|projection| self.shape(projection)));
        modules
    }

    /// One of the modules that adapters adapt; `None` if the model has none of this kind.
    pub fn linear(&self, projection: Projection) -> Option<LinearShape> {
        let has = Projection::applied(self.fused).contains(&projection)
            || Projection::ENDS.contains(&projection);
        has.then(|| self.shape(projection))
    }

    fn shape(&self, projection: Projection) -> LinearShape {
        use Projection::{Down, EmbedTokens, Gate, GateUp, K, LmHead, O, Q, Qkv, Up, V};
        let query = self.num_attention_heads * self.head_dim;
        let key = self.num_key_value_heads * self.head_dim;
        let (d_in, d_out, bias) = match projection {
            Q => (self.d_model, query, self.qkv_bias),
            K | V => (self.d_model, key, self.qkv_bias),
            Qkv => (self.d_model, query + 2 * key, self.qkv_bias),
            O => (query, self.d_model, self.output_bias),
            Gate | Up => (self.d_model, self.d_ffn, self.mlp_bias),
            GateUp => (self.d_model, 2 * self.d_ffn, self.mlp_bias),
            Down => (self.d_ffn, self.d_model, self.mlp_bias),
            EmbedTokens => (self.vocab_size, self.d_model, false),
            LmHead => (self.d_model, self.vocab_size, false),
        };
        LinearShape {
            projection,
            d_in,
            d_out,
            bias,
        }
    }
}
