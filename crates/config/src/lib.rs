//! The run configuration of loraloom: YAML, TOML or JSON in, resolved and validated values out.
//!
//! [`RunConfig::load`] reads a file, applies `--set` overrides, fills in defaults and validates; later code works
//! with plain values. Mistakes in a file are [`ConfigError`]s that name the key, the line and, if one is close, the
//! intended key.

mod absent;
mod alternatives;
mod columns;
mod defaults;
mod device;
mod error;
mod file;
mod init_lora_weights;
mod load;
mod merge;
mod mlora;
mod objective;
mod overrides;
mod paths;
mod pipeline;
mod place;
mod preference_loss;
mod quantization;
mod resolve;
mod resolved;
mod schedule;
mod scheduler;
mod slora;
mod starter;
mod suggest;
mod sweep;
mod target_module;
mod tree;
mod validate;
mod without_effect;
mod written_config;

pub use absent::{Absent, OnHub};
pub use error::{ConfigError, ParseError};
pub use file::json_schema;
pub use init_lora_weights::{EvaConfig, InitLoraWeights};
pub use load::{LoadOptions, Loaded};
pub use objective::{ObjectiveSettings, ObjectiveType, Preference, Reference};
pub use paths::absolute;
pub use pipeline::{BalanceChoice, PipelineConfig, Schedule, StageLocation, WorkerAddress};
pub use place::Place;
pub use preference_loss::{Contrast, Cpo, Dpo, Kto, LossType, Orpo, PreferenceLoss};
pub use quantization::{QuantizationConfig, QuantizationType};
pub use resolved::{
    AdapterConfig, ColumnMap, DatasetConfig, DeviceChoice, DtypeChoice, EvalSettings, LoraSettings,
    LrSchedulerKwargs, LrSchedulerType, RampType, RunConfig, SaveSettings, TrainSettings,
    Validation,
};
pub use scheduler::{MemoryLimit, PolicyChoice, SchedulerConfig};
pub use slora::SloraConfig;
pub use starter::{StarterDataset, starter};
pub use suggest::Candidates;
pub use sweep::{EarlyStopping, StoppingMetric, SweepConfig};
pub use target_module::TargetModule;
