//! The configuration file as a user writes it: every key, no defaults filled in.
//!
//! The doc comments of these types become the descriptions of the JSON schema, which editors show and
//! `docs/configuration.md` is generated from.
#![expect(
    clippy::doc_markdown,
    reason = "editors show these descriptions as plain text"
)]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    AdapterConfig, BalanceChoice, ColumnMap, DeviceChoice, DtypeChoice, EvalSettings, LoraSettings,
    ObjectiveSettings, PipelineConfig, QuantizationConfig, SaveSettings, Schedule, SchedulerConfig,
    StageLocation, TrainSettings, Validation, alternatives::OneOrMany, sweep::SweepFile,
};

/// A run: one base model and the LoRA adapters trained over it.
///
/// Relative paths in this file are resolved against its folder; paths on the command line against the
/// working directory. `~`, `$VAR` and `${VAR}` are expanded; write `$$` for a literal `$`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping with `model`, `datasets` and `adapters`"
)]
#[schemars(title = "loraloom configuration")]
pub(crate) struct RunFile {
    /// Directory of the base model in Hugging Face form: config.json, *.safetensors (sharded or not)
    /// and tokenizer.json. If it does not exist, `org/name` or `org/name@revision` names a model
    /// in the Hugging Face cache, which is downloaded if missing.
    pub(crate) model: String,
    /// Directory that the run writes to. By default `runs/NAME`, where NAME is the name of this file
    /// without its extension.
    pub(crate) output_dir: Option<String>,
    /// Device to compute on: auto, cpu, wgpu, wgpu:INDEX, cuda or cuda:INDEX. auto uses the best
    /// device that works. Leave it out if `pipeline.stages` names devices.
    #[schemars(with = "Option<String>", extend("default" = "auto"))]
    pub(crate) device: Option<DeviceChoice>,
    /// Type of the frozen weights and activations. Adapters and their moments are always float32.
    #[schemars(extend("default" = "auto"))]
    pub(crate) dtype: Option<DtypeChoice>,
    /// Quantise the base model's linear layers as they are read. By default they are as the checkpoint has them.
    pub(crate) quantization: Option<QuantizationConfig>,
    /// Seed of every adapter that does not set its own.
    #[schemars(extend("default" = 0))]
    pub(crate) seed: Option<u64>,
    /// Recompute each decoder layer in the backward pass instead of keeping its activations: less
    /// memory for a second forward pass.
    #[schemars(extend("default" = false))]
    pub(crate) gradient_checkpointing: Option<bool>,
    /// How the model's layers are spread over devices and workers.
    pub(crate) pipeline: Option<PipelineFile>,
    /// Which adapters train at the same time, and in which groups.
    #[serde(default)]
    pub(crate) scheduler: SchedulerConfig,
    /// Datasets by name; adapters refer to these names.
    pub(crate) datasets: BTreeMap<String, DatasetFile>,
    /// Settings of every adapter that does not set them itself, key by key.
    #[expect(dead_code, reason = "merged into the adapters before they are read")]
    pub(crate) defaults: Option<DefaultsFile>,
    /// The adapters to train. Optional if `sweep` has a grid.
    #[schemars(default)]
    pub(crate) adapters: Vec<AdapterConfig>,
    /// Sets of adapters that differ in a few settings and are compared with each other.
    pub(crate) sweep: Option<Vec<SweepFile>>,
}

/// How the model's layers are spread over devices and workers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping of pipeline settings")]
pub(crate) struct PipelineFile {
    /// Devices and workers in the order of the layers, one stage each: cpu, wgpu, wgpu:INDEX, cuda,
    /// cuda:INDEX or remote:ID@HOST:PORT. By default one stage on `device`.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    pub(crate) stages: Option<Vec<StageLocation>>,
    /// Decoder layers of each stage. auto balances estimated cost; staggered gives groups of adapters
    /// different layers on each stage, for many stages with few layers; a list such as [11, 11] sets
    /// the layers; a list of such lists sets one partition per group, taken in turn.
    #[schemars(extend("default" = "auto"))]
    pub(crate) balance: Option<BalanceChoice>,
    /// Order in which stages process the groups of adapters.
    #[schemars(extend("default" = "lorapp"))]
    pub(crate) schedule: Option<Schedule>,
    /// Micro-batches that each batch of a group is cut into, so that several stages work on it at the
    /// same time. Multiplies with `train.gradient_accumulation_steps`.
    #[schemars(range(min = 1), extend("default" = 1))]
    pub(crate) microbatches: Option<usize>,
    /// Extra micro-batches that each stage keeps in flight to hide the latency of slow links. If a
    /// transfer takes about as long as a pass, 2 hides it. Needs more groups of adapters and more
    /// memory for activations.
    #[schemars(range(min = 0, max = 16), extend("default" = 0))]
    pub(crate) extra_warmup: Option<usize>,
    /// File with the token of the workers. Required if a stage is remote.
    pub(crate) token_file: Option<String>,
    /// Seconds without progress after which the run regards a worker as lost. Must be longer than three
    /// optimizer steps take.
    #[schemars(extend("exclusiveMinimum" = 0, "default" = PipelineConfig::STEP_DEADLINE))]
    pub(crate) step_deadline: Option<f64>,
}

/// One dataset: its files and how a row becomes text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with `path`")]
pub(crate) struct DatasetFile {
    /// A JSONL, JSON or CSV file, also compressed (.jsonl.gz, .jsonl.zst), or a list of them read as one
    /// table. A pattern such as data/*.jsonl matches several files, sorted by path;
    /// hf://datasets/ORG/NAME/FILE or hf://datasets/ORG/NAME@REVISION/FILE for files on the Hugging Face
    /// Hub.
    pub(crate) path: OneOrMany,
    /// Names of the columns that hold each part of a row. By default detected from the first rows.
    pub(crate) columns: Option<ColumnMap>,
    /// Jinja template over a row's columns; of a whole row it may mark what is trained on with
    /// `{% generation %}`. By default each format has its own rendering.
    pub(crate) template: Option<String>,
    /// Rows held out for validation: a fraction of the rows, or another file.
    #[schemars(extend("default" = 0))]
    pub(crate) validation: Option<Validation>,
}

/// Settings of every adapter that does not set them itself.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping of adapter settings")]
#[expect(
    dead_code,
    reason = "only to check that it can be read, and for the schema"
)]
pub(crate) struct DefaultsFile {
    /// Name of the dataset.
    pub(crate) dataset: Option<String>,
    /// Adapters with a larger priority train first.
    #[schemars(extend("default" = 0))]
    pub(crate) priority: Option<i64>,
    /// Owner of the adapter, for the policy `fair`.
    #[schemars(extend("default" = "default"))]
    pub(crate) tenant: Option<String>,
    /// Seed of initialisation, dropout and row order. By default the run's `seed`.
    pub(crate) seed: Option<u64>,
    /// Rank, scale and targets of the adapter.
    pub(crate) lora: Option<LoraSettings>,
    /// The loss.
    pub(crate) objective: Option<ObjectiveSettings>,
    /// Batches, length, learning rate and optimizer.
    pub(crate) train: Option<TrainSettings>,
    /// Validation and patience.
    pub(crate) eval: Option<EvalSettings>,
    /// Intervals of saves.
    pub(crate) save: Option<SaveSettings>,
}

/// The JSON schema (draft 2020-12) of a configuration file, for editors.
pub fn json_schema() -> serde_json::Value {
    schemars::schema_for!(RunFile).to_value()
}
