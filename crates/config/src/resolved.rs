//! The resolved configuration, after defaults, overrides and validation.
//!
//! The other crates take these values; `config show` prints them and every run directory keeps them as
//! `config.resolved.yaml`, which is itself a valid configuration.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    EvaConfig, InitLoraWeights, ObjectiveSettings, PipelineConfig, QuantizationConfig,
    SchedulerConfig, SloraConfig, SweepConfig, TargetModule,
    alternatives::OneOrMany,
    target_module::{self, modules},
};

/// A whole run: one backbone and the adapters trained over it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// Directory in Hugging Face form: `config.json`, `*.safetensors`, `tokenizer.json`.
    pub model: PathBuf,
    /// The run directory; a run writes nothing outside it.
    pub output_dir: PathBuf,
    /// Device of the first local stage of `pipeline`, or the CPU if all stages are workers.
    pub device: DeviceChoice,
    /// Type of the frozen weights and activations. Adapters and their moments are `float32`.
    pub dtype: DtypeChoice,
    /// Storage of the base model's linear layers; `None` leaves them as the checkpoint has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<QuantizationConfig>,
    /// Seed of every adapter that does not set its own.
    pub seed: u64,
    /// Recompute each decoder layer in the backward pass instead of keeping its intermediates.
    pub gradient_checkpointing: bool,
    /// Stages and their schedule.
    pub pipeline: PipelineConfig,
    /// Which adapters train at the same time, and in which groups.
    pub scheduler: SchedulerConfig,
    /// Datasets by name.
    pub datasets: BTreeMap<String, DatasetConfig>,
    /// The adapters to train, in the order of the file, followed by the points of sweeps.
    pub adapters: Vec<AdapterConfig>,
    /// Adapters that are compared with each other.
    #[serde(default)]
    pub sweep: Vec<SweepConfig>,
}

/// Device to compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// The best device that works on this machine; the CPU if there is no other.
    Auto,
    /// The CPU.
    Cpu,
    /// The wgpu device with this index; `None` is the default one.
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

/// One dataset: its files and how a row becomes text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetConfig {
    /// Files, read in this order as one table.
    pub path: Vec<PathBuf>,
    /// Names of the columns; `None` detects the format from the first rows.
    pub columns: Option<ColumnMap>,
    /// Jinja template over a row's columns; `None` uses the format's own rendering.
    pub template: Option<String>,
    /// Rows held out for validation.
    pub validation: Validation,
}

impl DatasetConfig {
    /// True if the dataset has rows for validation.
    pub(crate) fn has_validation(&self) -> bool {
        self.validation != Validation::Fraction(0.0)
    }
}

/// Rows held out for validation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Validation {
    /// Fraction of the rows, at least 0 and below 1, drawn from the dataset's name and the run's seed.
    Fraction(f64),
    /// All rows of another file of the same format.
    File(PathBuf),
}

/// Names of the columns that hold each part of a row. Each variant is one format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(deny_unknown_fields)]
pub enum ColumnMap {
    /// Chat messages, a list of `{role, content}`; trains the assistant's turns, but not those with `weight: 0`.
    /// A column `system` is the system message of a chat without one.
    Messages {
        /// Column with the list.
        messages: String,
    },
    /// `ShareGPT`, a list of `{from, value}`; as chat messages. `function_call` is an assistant message,
    /// `observation` a tool message.
    Conversations {
        /// Column with the list.
        conversations: String,
    },
    /// Prompt and completion; trains the completion.
    PromptCompletion {
        /// Column with the prompt.
        prompt: String,
        /// Column with the completion.
        completion: String,
    },
    /// Alpaca, with an optional input; trains the output. A column `system` comes before the instruction.
    Instruction {
        /// Column with the instruction.
        instruction: String,
        /// Column with the input, if the rows have one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<String>,
        /// Column with the output.
        output: String,
    },
    /// Plain text; trains all of it.
    Text {
        /// Column with the text.
        text: String,
    },
    /// A better and a worse completion of a prompt, for preference losses. Each is text, a message or a list of
    /// messages, `{role, content}` or `{from, value}`. Without `prompt`, both are whole chats that begin with the same
    /// messages.
    Pairs {
        /// Column with the prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt: Option<String>,
        /// Column with the better completion.
        chosen: String,
        /// Column with the worse completion.
        rejected: String,
    },
    /// A better and a worse completion of an Alpaca instruction.
    InstructionPairs {
        /// Column with the instruction.
        instruction: String,
        /// Column with the input, if the rows have one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<String>,
        /// Column with the better completion.
        chosen: String,
        /// Column with the worse completion.
        rejected: String,
    },
    /// A completion that is good or bad, for KTO. Prompt and completion may be messages.
    Rated {
        /// Column with the prompt.
        prompt: String,
        /// Column with the completion.
        completion: String,
        /// Column that is true for a good completion and false for a bad one.
        label: String,
    },
    /// An Alpaca instruction with an output that is good or bad, for KTO.
    RatedInstruction {
        /// Column with the instruction.
        instruction: String,
        /// Column with the input, if the rows have one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<String>,
        /// Column with the output.
        output: String,
        /// Column that is true for a good output and false for a bad one.
        label: String,
    },
    /// A chat whose last answer is good or bad, for KTO.
    RatedMessages {
        /// Column with the list of messages, in either form.
        messages: String,
        /// Column that is true for a good answer and false for a bad one.
        label: String,
    },
}

/// One adapter: its data, shape and training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with `name` and `dataset`")]
pub struct AdapterConfig {
    /// Unique name; also the name of its directory in `adapters/`.
    pub name: String,
    /// Name of its dataset. Required here or in `defaults`, unless there is only one dataset.
    #[serde(default)]
    pub dataset: String,
    /// Adapters with a larger priority train first.
    #[serde(default)]
    pub priority: i64,
    /// Owner of the adapter, for the policy `fair`.
    #[serde(default = "tenant")]
    pub tenant: String,
    /// PEFT adapter directory to start from, or an adapter in the Hugging Face cache, as `model`. Its `r`,
    /// `lora_alpha`, `use_rslora`, `use_dora` and `target_modules` then replace those of `lora`. By default A and B are as
    /// `lora.init_lora_weights` says.
    #[schemars(with = "Option<String>")]
    pub init_from: Option<PathBuf>,
    /// Seed of initialisation, dropout and row order. By default the run's `seed`.
    #[serde(default)]
    pub seed: u64,
    /// Rank, scale and targets of the adapter.
    #[serde(default)]
    pub lora: LoraSettings,
    /// The loss.
    #[serde(default)]
    pub objective: ObjectiveSettings,
    /// Batches, length, learning rate and optimizer.
    #[serde(default)]
    pub train: TrainSettings,
    /// Validation and patience.
    #[serde(default)]
    pub eval: EvalSettings,
    /// Intervals of saves.
    #[serde(default)]
    pub save: SaveSettings,
}

impl AdapterConfig {
    /// Writes out the defaults that depend on other settings: those of the objective, of EVA and of LoRA+.
    pub fn fill_defaults(&mut self) {
        let (lora, train) = (&mut self.lora, &mut self.train);
        let eva = lora.eva_config();
        let is_used = lora.init_lora_weights == InitLoraWeights::Eva;
        lora.eva_config = (is_used || eva != EvaConfig::default()).then_some(eva);
        if train.loraplus_lr_ratio.is_some() {
            train.loraplus_lr_embedding = Some(train.loraplus_lr_embedding());
        }
        self.objective.fill_defaults();
    }
}

/// Rank, scale and targets of an adapter. The keys are PEFT's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a mapping of LoRA settings")]
pub struct LoraSettings {
    /// Rank of A and B.
    #[schemars(range(min = 1))]
    pub r: usize,
    /// Numerator of the scale: the adapter's output is multiplied by lora_alpha / r.
    pub lora_alpha: f64,
    /// Probability with which an element of the adapter's input is dropped in training.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1))]
    pub lora_dropout: f64,
    /// Modules to adapt: any of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and
    /// down_proj (Phi-3: qkv_proj, o_proj, gate_up_proj and down_proj), or all-linear for all of them; also the output
    /// projection lm_head and the embedding embed_tokens.
    #[serde(deserialize_with = "modules", serialize_with = "target_module::write")]
    #[schemars(with = "OneOrMany")]
    pub target_modules: Vec<TargetModule>,
    /// Scale by lora_alpha / sqrt(r) instead of lora_alpha / r.
    pub use_rslora: bool,
    /// DoRA: also train a magnitude for each output of an adapted module. Not for embed_tokens.
    pub use_dora: bool,
    /// Start values of the adapter, random ones from its seed. An adapter of embed_tokens begins with A zero and B normal
    /// in any case, as in PEFT. `init_from` replaces them.
    pub init_lora_weights: InitLoraWeights,
    /// Settings of `init_lora_weights: eva`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "EvaConfig")]
    pub eva_config: Option<EvaConfig>,
    /// Settings of `init_lora_weights: slora`.
    #[serde(skip_serializing_if = "SloraConfig::is_default")]
    pub slora_config: SloraConfig,
    /// LoRA-FA: train B and keep A at its start values. A of embed_tokens is trained in any case, as in PEFT. The
    /// optimizer is AdamW; that of PEFT's create_lorafa_optimizer also rescales the gradient of B.
    pub lora_fa: bool,
}

impl LoraSettings {
    /// Ranks of a fresh adapter, with those that are not trained.
    pub fn ranks(&self) -> usize {
        let both = if self.init_lora_weights.is_of_weights() {
            2
        } else {
            1
        };
        self.r.saturating_mul(both)
    }

    /// Settings of `init_lora_weights: eva`.
    pub fn eva_config(&self) -> EvaConfig {
        self.eva_config.unwrap_or_default()
    }
}

/// Training of an adapter. The keys are those of transformers' `TrainingArguments`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping of training settings"
)]
pub struct TrainSettings {
    /// Rows per batch of this adapter.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub batch_size: usize,
    /// Batches per optimizer step.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub gradient_accumulation_steps: usize,
    /// Tokens at which longer rows are cut.
    #[schemars(range(min = 2))]
    pub max_seq_len: usize,
    /// Epochs: passes over the dataset; may be fractional. Ignored if `max_steps` is set.
    #[schemars(range(max = 1_000_000), extend("exclusiveMinimum" = 0))]
    pub num_epochs: f64,
    /// Optimizer steps; overrides `num_epochs`. null in an adapter removes the value of `defaults`.
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub max_steps: Option<usize>,
    /// Learning rate at the end of the warm-up, its highest value.
    #[schemars(range(min = 0.0))]
    pub learning_rate: f64,
    /// Schedule of the learning rate over the steps.
    pub lr_scheduler_type: LrSchedulerType,
    /// Keywords of the schedule. null in an adapter removes those of `defaults`.
    #[serde(skip_serializing_if = "LrSchedulerKwargs::is_empty")]
    pub lr_scheduler_kwargs: LrSchedulerKwargs,
    /// Optimizer steps of linear warm-up; 0 uses `warmup_ratio`.
    pub warmup_steps: usize,
    /// Warm-up as a fraction of all steps, rounded up; used if `warmup_steps` is 0.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub warmup_ratio: f64,
    /// LoRA+: learning rate of B over that of A, as in PEFT's create_loraplus_optimizer; learning_rate is A's. By
    /// default both have one. null in an adapter removes the value of `defaults`.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub loraplus_lr_ratio: Option<f64>,
    /// LoRA+: learning rate of A and B of embed_tokens at the end of the warm-up. Needs `loraplus_lr_ratio`. null in
    /// an adapter removes the value of `defaults`.
    #[schemars(extend("exclusiveMinimum" = 0, "default" = LORAPLUS_LR_EMBEDDING))]
    pub loraplus_lr_embedding: Option<f64>,
    /// Decoupled weight decay of AdamW.
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// Decay rate of AdamW's first moment, at least 0 and below 1.
    pub adam_beta1: f64,
    /// Decay rate of AdamW's second moment, at least 0 and below 1.
    pub adam_beta2: f64,
    /// Epsilon of AdamW, added outside the square root.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub adam_epsilon: f64,
    /// Largest global gradient norm of the adapter; larger gradients are scaled down to it. 0 turns
    /// clipping off.
    #[schemars(range(min = 0.0))]
    pub max_grad_norm: f64,
    /// Share of a target's probability that is spread over the vocabulary, at least 0 and below 1, as transformers'
    /// Trainer does in training and evaluation. Only with `objective: {type: sft}`.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1))]
    pub label_smoothing_factor: f64,
    /// Draw a new order of the rows for each epoch.
    pub shuffle: bool,
    /// Train on all tokens of a row instead of only the completion or the assistant's turns.
    pub train_on_prompt: bool,
}

/// PEFT's default.
const LORAPLUS_LR_EMBEDDING: f64 = 1e-6;

impl TrainSettings {
    /// The learning rate of embedding adapters with LoRA+ at the end of the warm-up.
    pub fn loraplus_lr_embedding(&self) -> f64 {
        self.loraplus_lr_embedding.unwrap_or(LORAPLUS_LR_EMBEDDING)
    }
}

/// Schedule of the learning rate over the steps, as in transformers' `get_scheduler`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedulerType {
    /// Constant from the first step; has no warm-up, as in transformers.
    Constant,
    /// Linear warm-up, then constant.
    ConstantWithWarmup,
    /// Linear warm-up, then linear decay to zero.
    Linear,
    /// Linear warm-up, then half a cosine to zero; num_cycles cosines if it is set, by default 0.5.
    Cosine,
    /// Linear warm-up, then half a cosine to min_lr, or to min_lr_rate of learning_rate; needs one of the two.
    CosineWithMinLr,
    /// Linear warm-up, then num_cycles times half a cosine to zero, by default once.
    CosineWithRestarts,
    /// Linear warm-up, then decay to lr_end, by default 1e-7, along the power `power`, by default 1.
    Polynomial,
    /// Linear warm-up, then decay by the inverse square root of the steps over timescale, by default the steps
    /// of the warm-up, or 10000 without.
    InverseSqrt,
    /// Warm-up, constant, then num_decay_steps of decay to min_lr_ratio of learning_rate; needs num_decay_steps.
    WarmupStableDecay,
}

/// Keywords of the schedules, as in transformers' `lr_scheduler_kwargs`. Each schedule takes its own and refuses the
/// others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping of a schedule's keywords"
)]
pub struct LrSchedulerKwargs {
    /// cosine_with_min_lr: the last learning rate.
    #[schemars(range(min = 0.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr: Option<f64>,
    /// cosine_with_min_lr: the last learning rate as a fraction of learning_rate.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr_rate: Option<f64>,
    /// cosine, cosine_with_min_lr, warmup_stable_decay: cosines of the decay, by default 0.5.
    /// cosine_with_restarts: half cosines, by default 1.
    #[schemars(range(min = 0.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_cycles: Option<f64>,
    /// polynomial: the last learning rate, below learning_rate.
    #[schemars(range(min = 0.0), extend("default" = 1e-7))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_end: Option<f64>,
    /// polynomial: exponent of the remaining fraction of the steps.
    #[schemars(range(min = 0.0), extend("default" = 1.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<f64>,
    /// inverse_sqrt: steps after the warm-up's end in which the learning rate falls to 1 / sqrt(2) of its peak. By
    /// default the steps of the warm-up, or 10000 without.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timescale: Option<usize>,
    /// warmup_stable_decay: steps of the decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_decay_steps: Option<usize>,
    /// warmup_stable_decay: steps at the peak; by default all that warm-up and decay leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_stable_steps: Option<usize>,
    /// warmup_stable_decay: shape of the warm-up.
    #[schemars(extend("default" = "linear"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_type: Option<RampType>,
    /// warmup_stable_decay: shape of the decay.
    #[schemars(extend("default" = "cosine"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_type: Option<RampType>,
    /// warmup_stable_decay: the first and last learning rate as a fraction of learning_rate.
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = 0.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr_ratio: Option<f64>,
}

/// Shape of a warm-up or a decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RampType {
    /// A line.
    Linear,
    /// A cosine.
    Cosine,
    /// 1 minus a square root.
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
}

/// Evaluation of an adapter, if its dataset has validation rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping of evaluation settings"
)]
pub struct EvalSettings {
    /// Optimizer steps between evaluations; the end of training is always evaluated, and so are the
    /// steps at which a sweep compares by eval_loss.
    #[schemars(range(min = 1))]
    pub steps: usize,
    /// Evaluations, one every `steps`, without a new best after which the adapter stops. Needs
    /// validation rows. null in an adapter removes the value of `defaults`.
    #[schemars(range(min = 1))]
    pub patience: Option<usize>,
}

/// Intervals of saves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a mapping of save settings")]
pub struct SaveSettings {
    /// Optimizer steps between saves of the adapter and a checkpoint; the end of training is always
    /// saved.
    #[schemars(range(min = 1))]
    pub steps: usize,
    /// Newest checkpoints of the run that are kept.
    #[schemars(range(min = 1))]
    pub keep: usize,
}

fn tenant() -> String {
    "default".to_owned()
}
