//! The configuration file: every key a user may write, and nothing filled in.
//!
//! The documentation of these types is what editors show, through the JSON schema.
#![expect(
    clippy::doc_markdown,
    reason = "editors show these descriptions as plain text"
)]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    AdapterConfig, BalanceChoice, ColumnMap, DeviceChoice, DtypeChoice, EvalSettings, LoraSettings,
    SaveSettings, Schedule, SchedulerConfig, StageLocation, TrainSettings, Validation,
    one_or_many::OneOrMany, sweep::SweepFile,
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
    #[serde(default)]
    pub(crate) scheduler: SchedulerConfig,
    /// Datasets by name.
    pub(crate) datasets: BTreeMap<String, DatasetFile>,
    /// What every adapter has unless it says otherwise, field by field.
    #[expect(dead_code, reason = "merged into the adapters before they are read")]
    pub(crate) defaults: Option<DefaultsFile>,
    /// The adapters to train. May be left out if `sweep` has a grid.
    #[schemars(default)]
    pub(crate) adapters: Vec<AdapterConfig>,
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
    pub(crate) stages: Option<Vec<StageLocation>>,
    /// Decoder layers of each stage, such as [11, 11]; default auto, by estimated cost.
    pub(crate) balance: Option<BalanceChoice>,
    /// In which order stages work for the groups of adapters; default lorapp.
    pub(crate) schedule: Option<Schedule>,
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
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping of adapter settings")]
#[expect(
    dead_code,
    reason = "read to learn whether it can be, and for the schema"
)]
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
    pub(crate) lora: Option<LoraSettings>,
    /// How it trains.
    pub(crate) train: Option<TrainSettings>,
    /// When it is evaluated.
    pub(crate) eval: Option<EvalSettings>,
    /// When it is saved.
    pub(crate) save: Option<SaveSettings>,
}
