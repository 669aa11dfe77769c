//! What a run is, after defaults, overrides and validation: no options left open, no file syntax.
//!
//! These values are what the other crates take; `config show` prints them and every run directory
//! keeps them as `config.resolved.yaml`, which is itself a valid configuration.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    PipelineConfig, SchedulerConfig, SweepConfig, TargetModule, one_or_many::OneOrMany,
    target_module::modules,
};

/// A whole run: one backbone and the adapters trained over it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// Directory in Hugging Face form: `config.json`, `*.safetensors`, `tokenizer.json`.
    pub model: PathBuf,
    /// The run directory; everything a run writes is below it.
    pub output_dir: PathBuf,
    /// Where to compute what is computed on this machine: the first stage of `pipeline` here, or the
    /// CPU where all stages are workers.
    pub device: DeviceChoice,
    /// Type of the frozen weights and activations. Adapters and their moments are `float32`.
    pub dtype: DtypeChoice,
    /// Seed of every adapter that names none itself.
    pub seed: u64,
    /// Recompute each decoder layer in the backward pass instead of keeping its intermediates.
    pub gradient_checkpointing: bool,
    /// What holds the layers, and how it takes turns.
    pub pipeline: PipelineConfig,
    /// Which adapters train at a time, and beside which others.
    pub scheduler: SchedulerConfig,
    /// Datasets by name.
    pub datasets: BTreeMap<String, DatasetConfig>,
    /// The adapters to train, in the order of the file; then the points of sweeps.
    pub adapters: Vec<AdapterConfig>,
    /// Which of them are compared with each other.
    #[serde(default)]
    pub sweep: Vec<SweepConfig>,
}

/// Where to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// The best device that works here; the CPU if there is no other.
    Auto,
    /// The CPU.
    Cpu,
    /// The wgpu adapter with this index; `None` is the default one.
    Wgpu(Option<usize>),
    /// The CUDA device with this index; `None` is the first.
    Cuda(Option<usize>),
}

/// Type of the frozen weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DtypeChoice {
    /// `float32` on the CPU; otherwise the checkpoint's type if the device has it.
    Auto,
    /// 32-bit IEEE floats.
    Float32,
    /// 16-bit brain floats.
    Bfloat16,
    /// 16-bit IEEE floats.
    Float16,
}

/// One dataset: where its rows are and how a row becomes text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetConfig {
    /// Files, read in this order as one table.
    pub path: Vec<PathBuf>,
    /// Which columns hold what; `None` detects the format from the first rows.
    pub columns: Option<ColumnMap>,
    /// Jinja over a row's columns; `None` uses the format's own rendering.
    pub template: Option<String>,
    /// Rows held out for validation.
    pub validation: Validation,
}

/// Rows held out for validation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Validation {
    /// This fraction of the rows, chosen by the dataset's name and the run's seed; 0 holds out none.
    Fraction(f64),
    /// All rows of another file of the same format.
    File(PathBuf),
}

/// Which columns of a row hold what. Each variant is one of the formats of the interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(deny_unknown_fields)]
pub enum ColumnMap {
    /// Chat messages: a list of `{role, content}`.
    Messages {
        /// Column holding the list.
        messages: String,
    },
    /// `ShareGPT`: a list of `{from, value}`.
    Conversations {
        /// Column holding the list.
        conversations: String,
    },
    /// Prompt and completion.
    PromptCompletion {
        /// Column with the prompt.
        prompt: String,
        /// Column with the completion.
        completion: String,
    },
    /// Alpaca: instruction, optional input, output.
    Instruction {
        /// Column with the instruction.
        instruction: String,
        /// Column with the input, if the rows have one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<String>,
        /// Column with the output.
        output: String,
    },
    /// Plain text.
    Text {
        /// Column with the text.
        text: String,
    },
}

/// One adapter: what it learns from, its shape and its schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with `name` and `dataset`")]
pub struct AdapterConfig {
    /// Unique name; also its directory below `adapters/`.
    pub name: String,
    /// Name of its dataset.
    #[serde(default)]
    pub dataset: String,
    /// Larger runs first.
    #[serde(default)]
    pub priority: i64,
    /// Who asked for it.
    #[serde(default = "tenant")]
    pub tenant: String,
    /// PEFT adapter directory to start from instead of a fresh initialisation.
    #[schemars(with = "Option<String>")]
    pub init_from: Option<PathBuf>,
    /// Seed of initialisation, dropout and row order.
    #[serde(default)]
    pub seed: u64,
    /// Shape of the adapter.
    #[serde(default)]
    pub lora: LoraSettings,
    /// How it trains.
    #[serde(default)]
    pub train: TrainSettings,
    /// When it is evaluated.
    #[serde(default)]
    pub eval: EvalSettings,
    /// When it is saved.
    #[serde(default)]
    pub save: SaveSettings,
}

/// Shape of an adapter, in PEFT's words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a mapping of LoRA settings")]
pub struct LoraSettings {
    /// Rank.
    #[schemars(range(min = 1))]
    pub r: usize,
    /// Numerator of the scale.
    pub lora_alpha: f64,
    /// Probability of dropping an element of the adapter's input.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub lora_dropout: f64,
    /// Linear layers that are adapted, out of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj
    /// and down_proj, or all-linear.
    #[serde(deserialize_with = "modules")]
    #[schemars(with = "OneOrMany")]
    pub target_modules: Vec<TargetModule>,
    /// Scale by lora_alpha / sqrt(r) instead of lora_alpha / r.
    pub use_rslora: bool,
}

/// How an adapter trains, in the words of transformers' `TrainingArguments`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping of training settings"
)]
pub struct TrainSettings {
    /// Rows of one micro-batch.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub batch_size: usize,
    /// Micro-batches of one optimizer step.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub gradient_accumulation_steps: usize,
    /// Longer rows are cut to this many tokens.
    #[schemars(range(min = 2))]
    pub max_seq_len: usize,
    /// Passes over the dataset, unless `max_steps` is set.
    #[schemars(range(max = 1_000_000), extend("exclusiveMinimum" = 0))]
    pub num_epochs: f64,
    /// Optimizer steps; overrides `num_epochs`. `null` in an adapter undoes the default's.
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub max_steps: Option<usize>,
    /// Peak learning rate.
    #[schemars(range(min = 0.0))]
    pub learning_rate: f64,
    /// Shape of the learning rate over the steps.
    pub lr_scheduler_type: LrSchedulerType,
    /// Steps of linear warm-up; 0, the default, leaves it to `warmup_ratio`.
    pub warmup_steps: usize,
    /// Fraction of all steps that warm up, used when `warmup_steps` is 0.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub warmup_ratio: f64,
    /// Decoupled weight decay.
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// First decay rate of AdamW.
    pub adam_beta1: f64,
    /// Second decay rate of AdamW.
    pub adam_beta2: f64,
    /// Epsilon of AdamW, outside the square root.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub adam_epsilon: f64,
    /// Gradients of one adapter are scaled down to this global norm; 0 never scales.
    #[schemars(range(min = 0.0))]
    pub max_grad_norm: f64,
    /// Permute the rows anew each epoch.
    pub shuffle: bool,
    /// Train on the whole row, not only on the completion.
    pub train_on_prompt: bool,
}

/// Shape of the learning rate over the steps, as in transformers' `get_scheduler`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedulerType {
    /// Constant from the first step; transformers gives it no warm-up.
    Constant,
    /// Linear warm-up, then constant.
    ConstantWithWarmup,
    /// Warm-up, then linearly to zero.
    Linear,
    /// Warm-up, then half a cosine to zero.
    Cosine,
}

/// When an adapter is evaluated, if its dataset has validation rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping of evaluation settings"
)]
pub struct EvalSettings {
    /// Every this many steps, and at the end.
    #[schemars(range(min = 1))]
    pub steps: usize,
    /// End the adapter after this many evaluations without a new best. `null` in an
    /// adapter undoes the default's.
    #[schemars(range(min = 1))]
    pub patience: Option<usize>,
}

/// When an adapter is saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a mapping of save settings")]
pub struct SaveSettings {
    /// Every this many steps, and at the end.
    #[schemars(range(min = 1))]
    pub steps: usize,
    /// So many of the newest are kept.
    #[schemars(range(min = 1))]
    pub keep: usize,
}

fn tenant() -> String {
    "default".to_owned()
}
