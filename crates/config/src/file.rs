//! The configuration file: every key a user may write, and nothing filled in.
//!
//! The documentation of these types is what editors show, through the JSON schema.
#![expect(
    clippy::doc_markdown,
    reason = "editors show these descriptions as plain text"
)]
#![expect(
    clippy::option_option,
    reason = "absent, null and a number are three answers"
)]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use crate::{
    BalanceChoice, ColumnMap, DeviceChoice, DtypeChoice, LrSchedulerType, MemoryLimit,
    PolicyChoice, ScheduleChoice, StageChoice, Validation, one_or_many::OneOrMany,
    sweep::SweepFile,
};

/// A run: one backbone and the LoRA adapters trained over it.
///
/// Relative paths start from the folder of this file, on the command line from the working directory.
/// `~`, `$VAR` and `${VAR}` are expanded; a `$` itself is written `$$`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping with `model`, `datasets` and `adapters`"
)]
#[schemars(title = "loraloom configuration")]
pub(crate) struct RunFile {
    /// Directory of the base model: config.json, *.safetensors (sharded or not), tokenizer.json.
    pub(crate) model: String,
    /// Directory of the run; default `runs/` and the name of this file.
    pub(crate) output_dir: Option<String>,
    /// Where to compute: auto (default), cpu, wgpu, wgpu:INDEX, cuda or cuda:INDEX.
    #[schemars(with = "Option<String>")]
    pub(crate) device: Option<DeviceChoice>,
    /// Type of the frozen weights and activations; default auto.
    pub(crate) dtype: Option<DtypeChoice>,
    /// Seed of every adapter that names none itself; default 0.
    pub(crate) seed: Option<u64>,
    /// Recompute each decoder layer in the backward pass to save memory; default false.
    pub(crate) gradient_checkpointing: Option<bool>,
    /// Over which devices and workers the model's layers are spread, and how.
    pub(crate) pipeline: Option<PipelineFile>,
    /// Which adapters train at a time, and beside which others.
    pub(crate) scheduler: Option<SchedulerFile>,
    /// Datasets by name.
    pub(crate) datasets: BTreeMap<String, DatasetFile>,
    /// What every adapter has unless it says otherwise, field by field.
    pub(crate) defaults: Option<DefaultsFile>,
    /// The adapters to train. May be left out if `sweep` has a grid.
    #[schemars(default)]
    pub(crate) adapters: Vec<AdapterFile>,
    /// Adapters that differ in a few settings and are compared with each other.
    pub(crate) sweep: Option<Vec<SweepFile>>,
}

/// Over which devices and workers the model's layers are spread, and how.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping of pipeline settings")]
pub(crate) struct PipelineFile {
    /// Devices and workers in the order of the layers, one stage each: cpu, wgpu, wgpu:INDEX, cuda,
    /// cuda:INDEX or remote:ID@HOST:PORT; default one stage on `device`.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    pub(crate) stages: Option<Vec<StageChoice>>,
    /// Decoder layers of each stage, such as [11, 11]; default auto, by estimated cost.
    pub(crate) balance: Option<BalanceChoice>,
    /// In which order stages work for the groups of adapters; default lorapp.
    pub(crate) schedule: Option<ScheduleChoice>,
    /// Parts that each batch of a group is cut into, so that several stages work on it at a time;
    /// default 1. `train.gradient_accumulation_steps` come on top.
    #[schemars(range(min = 1))]
    pub(crate) microbatches: Option<usize>,
    /// Micro-batches that every stage is ahead of the next by, beyond one; default 0. Where a hop
    /// between stages takes about as long as a pass, 2 hides it, for as many more groups of adapters
    /// and activations in memory.
    #[schemars(range(min = 0, max = 16))]
    pub(crate) extra_warmup: Option<usize>,
    /// File with the token that workers were started with; needed if a stage is remote.
    pub(crate) token_file: Option<String>,
    /// Seconds that an iteration may take before the run gives up on a worker that has stalled;
    /// default 600.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub(crate) step_deadline: Option<f64>,
}

/// Which adapters train at a time, and beside which others.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping of scheduler settings")]
pub(crate) struct SchedulerFile {
    /// Whose turn it is; default best_effort_fifo.
    pub(crate) policy: Option<PolicyChoice>,
    /// How much of a device's memory may be used: a fraction, or a size such as 20GiB; default 0.9.
    pub(crate) memory_limit: Option<MemoryLimit>,
    /// How much neighbours may slow an adapter down: its step time among k adapters of a device,
    /// divided by the step time it has with 1/k of the device to itself; default 1.2.
    #[schemars(range(min = 1.0))]
    pub(crate) max_slowdown: Option<f64>,
    /// At most this many adapters train at the same time; default no cap.
    #[schemars(range(min = 1))]
    pub(crate) max_adapters: Option<usize>,
    /// Every so many seconds of waiting count as one more priority; default never.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub(crate) aging: Option<f64>,
}

/// Where rows are and how a row becomes text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with `path`")]
pub(crate) struct DatasetFile {
    /// A JSONL, JSON or CSV file, or a list of them read as one table.
    pub(crate) path: OneOrMany,
    /// Which columns hold what; default: detected from the first rows.
    pub(crate) columns: Option<ColumnMap>,
    /// Jinja over a row's columns; default: the format's own rendering.
    pub(crate) template: Option<String>,
    /// Rows held out for validation: a fraction of the rows, or a file; default 0.
    pub(crate) validation: Option<Validation>,
}

/// What every adapter has unless it says otherwise.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping of adapter settings")]
pub(crate) struct DefaultsFile {
    /// Name of the dataset.
    pub(crate) dataset: Option<String>,
    /// Larger runs first; default 0.
    pub(crate) priority: Option<i64>,
    /// Who asked for the adapter; default `default`.
    pub(crate) tenant: Option<String>,
    /// Seed of initialisation, dropout and row order; default the run's.
    pub(crate) seed: Option<u64>,
    /// Shape of the adapter.
    pub(crate) lora: Option<LoraFile>,
    /// How it trains.
    pub(crate) train: Option<TrainFile>,
    /// When it is evaluated.
    pub(crate) eval: Option<EvalFile>,
    /// When it is saved.
    pub(crate) save: Option<SaveFile>,
}

/// One adapter: what it learns from, its shape and its schedule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with `name` and `dataset`")]
pub(crate) struct AdapterFile {
    /// Unique name; also its directory below `adapters/`.
    pub(crate) name: String,
    /// Name of its dataset; default the one of `defaults`, or the only one there is.
    pub(crate) dataset: Option<String>,
    /// Larger runs first; default 0.
    pub(crate) priority: Option<i64>,
    /// Who asked for it; default `default`.
    pub(crate) tenant: Option<String>,
    /// PEFT adapter directory to start from instead of a fresh initialisation.
    pub(crate) init_from: Option<String>,
    /// Seed of initialisation, dropout and row order; default the run's.
    pub(crate) seed: Option<u64>,
    /// Shape of the adapter.
    pub(crate) lora: Option<LoraFile>,
    /// How it trains.
    pub(crate) train: Option<TrainFile>,
    /// When it is evaluated.
    pub(crate) eval: Option<EvalFile>,
    /// When it is saved.
    pub(crate) save: Option<SaveFile>,
}

/// Shape of an adapter, in PEFT's words.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping of LoRA settings")]
pub(crate) struct LoraFile {
    /// Rank; default 16.
    #[schemars(range(min = 1))]
    pub(crate) r: Option<usize>,
    /// Numerator of the scale; default 32.
    pub(crate) lora_alpha: Option<f64>,
    /// Probability of dropping an element of the adapter's input; default 0.05.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub(crate) lora_dropout: Option<f64>,
    /// Linear layers that are adapted, out of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj
    /// and down_proj, or all-linear; default q_proj, k_proj, v_proj, o_proj.
    pub(crate) target_modules: Option<OneOrMany>,
    /// Scale by lora_alpha / sqrt(r) instead of lora_alpha / r; default false.
    pub(crate) use_rslora: Option<bool>,
}

/// How an adapter trains, in the words of transformers' `TrainingArguments`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping of training settings")]
pub(crate) struct TrainFile {
    /// Rows of one micro-batch; default 8.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) batch_size: Option<usize>,
    /// Micro-batches of one optimizer step; default 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) gradient_accumulation_steps: Option<usize>,
    /// Longer rows are cut to this many tokens; default 512.
    #[schemars(range(min = 2))]
    pub(crate) max_seq_len: Option<usize>,
    /// Passes over the dataset, unless `max_steps` is set; default 10.
    #[schemars(range(max = 1_000_000), extend("exclusiveMinimum" = 0))]
    pub(crate) num_epochs: Option<f64>,
    /// Optimizer steps; overrides `num_epochs`. `null` in an adapter undoes the default's.
    #[serde(default, deserialize_with = "written")]
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub(crate) max_steps: Option<Option<usize>>,
    /// Peak learning rate; default 3e-4.
    #[schemars(range(min = 0.0))]
    pub(crate) learning_rate: Option<f64>,
    /// Shape of the learning rate over the steps; default cosine.
    pub(crate) lr_scheduler_type: Option<LrSchedulerType>,
    /// Steps of linear warm-up; 0, the default, leaves it to `warmup_ratio`.
    pub(crate) warmup_steps: Option<usize>,
    /// Fraction of all steps that warm up, used when `warmup_steps` is 0; default 0.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub(crate) warmup_ratio: Option<f64>,
    /// Decoupled weight decay; default 0.
    #[schemars(range(min = 0.0))]
    pub(crate) weight_decay: Option<f64>,
    /// First decay rate of AdamW; default 0.9.
    pub(crate) adam_beta1: Option<f64>,
    /// Second decay rate of AdamW; default 0.999.
    pub(crate) adam_beta2: Option<f64>,
    /// Epsilon of AdamW, outside the square root; default 1e-8.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub(crate) adam_epsilon: Option<f64>,
    /// Gradients of one adapter are scaled down to this global norm; 0 never scales; default 1.
    #[schemars(range(min = 0.0))]
    pub(crate) max_grad_norm: Option<f64>,
    /// Permute the rows anew each epoch; default true.
    pub(crate) shuffle: Option<bool>,
    /// Train on the whole row, not only on the completion; default false.
    pub(crate) train_on_prompt: Option<bool>,
}

/// When an adapter is evaluated, if its dataset has validation rows.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping of evaluation settings")]
pub(crate) struct EvalFile {
    /// Every this many steps, and at the end; default 200.
    #[schemars(range(min = 1))]
    pub(crate) steps: Option<usize>,
    /// End the adapter after this many evaluations without a new best; default never. `null` in an
    /// adapter undoes the default's.
    #[serde(default, deserialize_with = "written")]
    #[schemars(range(min = 1))]
    pub(crate) patience: Option<Option<usize>>,
}

/// When an adapter is saved.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping of save settings")]
pub(crate) struct SaveFile {
    /// Every this many steps, and at the end; default 500.
    #[schemars(range(min = 1))]
    pub(crate) steps: Option<usize>,
    /// So many of the newest are kept; default 2.
    #[schemars(range(min = 1))]
    pub(crate) keep: Option<usize>,
}

/// Tells a key written as `null` from one that is absent.
fn written<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
