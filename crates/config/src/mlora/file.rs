//! mLoRA's keys, as its demos write them.
//!
//! Keys of other kinds of adapters and tasks are missing, since those are refused by their `type` before their keys
//! are read.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::objective::{LossType, Pooling};

/// An mLoRA configuration.
#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping with `datasets`, `adapters` and `tasks`"
)]
pub(super) struct MloraFile {
    pub(super) dispatcher: Option<Dispatcher>,
    pub(super) datasets: Vec<Dataset>,
    pub(super) adapters: Vec<Adapter>,
    pub(super) tasks: Vec<Task>,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping with `name` and `concurrency_num`"
)]
pub(super) struct Dispatcher {
    pub(super) name: Option<String>,
    pub(super) concurrency_num: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping with `name`, `data` and `prompt`"
)]
pub(super) struct Dataset {
    pub(super) name: String,
    pub(super) data: String,
    pub(super) prompt: String,
    pub(super) prompt_type: Option<PromptType>,
    pub(super) preprocess: Option<Preprocess>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PromptType {
    Instruction,
    Preference,
    ContrastiveInstruction,
    Ppo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Preprocess {
    Default,
    Shuffle,
    Sort,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a mapping of adapter settings")]
pub(super) struct Adapter {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) path: Option<String>,
    pub(super) optimizer: Option<Optimizer>,
    pub(super) lr: Option<f64>,
    pub(super) lr_ratio: Option<f64>,
    pub(super) lrscheduler: Option<LrScheduler>,
    pub(super) t_max: Option<f64>,
    pub(super) eta_min: Option<f64>,
    pub(super) r: usize,
    pub(super) alpha: f64,
    pub(super) dropout: f64,
    pub(super) target_modules: BTreeMap<String, bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Optimizer {
    Adamw,
    Sgd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LrScheduler {
    Cosine,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a mapping of task settings")]
pub(super) struct Task {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(rename = "name")]
    pub(super) _name: Option<String>,
    pub(super) adapter: String,
    pub(super) dataset: String,
    pub(super) batch_size: usize,
    pub(super) mini_batch_size: usize,
    pub(super) num_epochs: f64,
    pub(super) cutoff_len: Option<usize>,
    pub(super) save_step: Option<usize>,
    pub(super) reference: Option<String>,
    pub(super) loss_type: Option<LossType>,
    pub(super) beta: Option<f64>,
    pub(super) label_smoothing: Option<f64>,
    pub(super) contrastive_pooling_method: Option<Pooling>,
    pub(super) lambda: Option<f64>,
    pub(super) temperature: Option<f64>,
}
