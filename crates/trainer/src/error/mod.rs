//! Errors that end a run, and their hints.

mod hint;
mod shell;

use std::{
    error::Error,
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use batchlora::BatchLoraError;
use loraloom_config::{AdapterConfig, ConfigError, Preference};
use loraloom_data::{DataError, TemplateError};
use loraloom_inference::InferenceError;
use loraloom_model::ModelError;
use loraloom_pipeline::{PartitionError, PipelineError, simulate::TimelineError};
use loraloom_scheduler::{SchedulerError, SweepError, sizes};
use thiserror::Error;

pub use hint::TO_FIT;
pub use shell::quoted;

/// The result of a function of this crate.
pub(crate) type Result<T, E = TrainerError> = std::result::Result<T, E>;

/// An error of a [`TaskSource`](crate::TaskSource).
pub type SourceError = Box<dyn Error + Send + Sync>;

/// An error that ends a run. A failure of a single task is an [`Outcome`](crate::Outcome) of that task instead.
#[derive(Debug, Error)]
pub enum TrainerError {
    /// The configuration cannot be serialized.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A setting of an adapter's objective is out of its range.
    #[error("adapter `{adapter}`: objective.{key} {problem}")]
    Objective {
        /// The adapter.
        adapter: String,
        /// The setting.
        key: &'static str,
        /// The problem.
        problem: String,
    },
    /// Rows do not have the preferences that an objective needs.
    #[error(
        "adapter `{adapter}`: objective `{objective}` needs {}, but dataset `{dataset}` has {}",
        rows_with(*needed),
        rows_with(*found)
    )]
    OtherRows {
        /// The adapter.
        adapter: String,
        /// Its objective.
        objective: &'static str,
        /// Preferences that it needs.
        needed: Option<Preference>,
        /// The dataset.
        dataset: String,
        /// Preferences in its rows.
        found: Option<Preference>,
    },
    /// Rows, templates or the tokenizer failed.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The chat template refuses the prompt.
    #[error("the chat template failed: {0}")]
    Template(#[from] TemplateError),
    /// Weights, adapters or the device failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Adapters and batch do not match.
    #[error(transparent)]
    Adapter(#[from] BatchLoraError),
    /// Scheduler and trainer disagree.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    /// A scheduler's decision cannot be carried out.
    #[error("the scheduler's decision cannot be carried out: {problem}")]
    Decision {
        /// The problem.
        problem: String,
    },
    /// Stages cannot be created or do not work together.
    #[error("{0}")]
    Pipeline(PipelineError),
    /// A pass took more memory than its stage may use.
    #[error("out of memory: the stage of layers {layers:?} took {}", of(*used, *limit))]
    OutOfMemory {
        /// Decoder layers of the stage.
        layers: Range<usize>,
        /// Peak of the bytes in use.
        used: u64,
        /// Bytes it may use.
        limit: u64,
    },
    /// Memory ran out, and nothing can be parked or made smaller.
    #[error("the run does not fit in memory: {0}")]
    DoesNotFit(#[source] Box<TrainerError>),
    /// Layers cannot be spread over the stages.
    #[error("`pipeline`: {0}")]
    Partition(#[from] PartitionError),
    /// A plan's pipeline has impossible speeds.
    #[error("cannot simulate the pipeline: {0}")]
    Simulation(#[from] TimelineError),
    /// The source of a run's tasks cannot be read or written.
    #[error("{0}")]
    Source(#[source] SourceError),
    /// A dataset's rows have changed since its task was submitted.
    #[error(
        "the rows of dataset `{dataset}` had BLAKE3 {before} when the task was submitted and now have \
         {now}; restore them, then resume the task"
    )]
    DatasetChanged {
        /// Its name.
        dataset: String,
        /// Digest of the rows that were submitted.
        before: String,
        /// Digest of the rows that were read.
        now: String,
    },
    /// The configuration has no stage.
    #[error("the pipeline has no stage")]
    NoStage,
    /// Stages on workers need a token.
    #[error("stages are on workers, but `pipeline.token_file` is not set")]
    NoToken,
    /// The workers' token cannot be read.
    #[error("cannot read the token in `{}`: {source}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The run directory already holds a run.
    #[error("`{}` already holds a run", path.display())]
    RunExists {
        /// The run directory.
        path: PathBuf,
    },
    /// Existing checkpoints cannot be listed.
    #[error("cannot list the checkpoints in `{}`: {source}", path.display())]
    Unlisted {
        /// Their directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The run directory cannot be written.
    #[error("cannot write `{}`: {source}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Another process trains into the run directory.
    #[error("another process is training the run in `{}`", path.display())]
    RunInUse {
        /// The run directory.
        path: PathBuf,
    },
    /// There is no complete checkpoint to resume from.
    #[error(
        "`{}` {}{}", path.display(),
        if *is_run { "has no checkpoint to resume from" } else { "is not a run directory" },
        listed(problems)
    )]
    NoCheckpoint {
        /// The run directory.
        path: PathBuf,
        /// True if it is a run directory.
        is_run: bool,
        /// Problems of the checkpoints that it has.
        problems: Vec<String>,
    },
    /// A checkpoint cannot be read or written.
    #[error("checkpoint: {problem}")]
    Checkpoint {
        /// The problem.
        problem: String,
    },
    /// A configuration cannot resume the run.
    #[error("`{key}` was {saved} in the run and is {now} now")]
    ConfigChanged {
        /// The key.
        key: String,
        /// The run's value.
        saved: String,
        /// The value now.
        now: String,
        /// The run directory.
        run: PathBuf,
    },
    /// A configuration lacks an adapter of the run that it is to resume.
    #[error("adapter `{adapter}` of the run is missing{}", added(new))]
    AdapterGone {
        /// Its name.
        adapter: String,
        /// Names of adapters that the run does not have.
        new: Vec<String>,
        /// The run directory.
        run: PathBuf,
    },
    /// The model differs from the one that the adapters of a run were trained over.
    #[error(
        "`{}` is not the model of `{}`: its weights or its `config.json` differ from those that the \
         run trains over",
        model.display(), run.display()
    )]
    OtherModel {
        /// The model.
        model: PathBuf,
        /// The run directory.
        run: PathBuf,
    },
    /// The early stopping of a sweep has invalid settings.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// The run directory was removed, moved or replaced.
    #[error(
        "the run directory `{}` was removed, moved or replaced while it was in use{}", path.display(),
        if lost.is_empty() { String::new() } else { format!("; not saved: {}", lost.join(", ")) }
    )]
    DirectoryGone {
        /// Its path.
        path: PathBuf,
        /// The adapters that were training, with their steps.
        lost: Vec<String>,
    },
    /// Saving failed repeatedly.
    #[error("saving has failed{}: {problem}", in_a_row(*times))]
    SavesFailed {
        /// Number of failures in a row.
        times: usize,
        /// The last error.
        problem: String,
    },
    /// The model has no embedding for a token.
    #[error(
        "dataset `{dataset}` has token {token}, but the model's vocabulary has {vocabulary} tokens"
    )]
    TokenBeyondVocabulary {
        /// Name of the dataset.
        dataset: String,
        /// The token.
        token: u32,
        /// Rows of the embedding.
        vocabulary: usize,
    },
    /// `target_modules` names a linear layer that the model does not have.
    #[error("adapter `{adapter}` targets `{module}`, which the model does not have")]
    NoTarget {
        /// Name of the adapter.
        adapter: String,
        /// The module.
        module: &'static str,
        /// The model's linear layers.
        has: Vec<&'static str>,
    },
    /// An adapter targets queries or keys, and no score of its rows depends on them.
    #[error(
        "adapter `{adapter}`: no gradient reaches `{module}`, since attention sees one token: {cause}"
    )]
    OneToken {
        /// Name of the adapter.
        adapter: String,
        /// The module.
        module: &'static str,
        /// The setting.
        cause: String,
    },
    /// An adapter differs from the digests that were saved with it.
    #[error("the adapter in `{}` has changed since it was saved: {changes}", path.display())]
    ChangedAdapter {
        /// Its directory.
        path: PathBuf,
        /// The files and their changes.
        changes: String,
    },
    /// An adapter cannot begin from its `init_from`.
    #[error("adapter `{adapter}` cannot begin from `{}`: {source}", directory.display())]
    InitFrom {
        /// Name of the adapter.
        adapter: String,
        /// Its `init_from`.
        directory: PathBuf,
        /// The error.
        source: Box<TrainerError>,
    },
    /// The start values of an adapter cannot be computed.
    #[error("adapter `{adapter}` cannot begin with `init_lora_weights: {init}`: {problem}")]
    Start {
        /// Name of the adapter.
        adapter: String,
        /// Its start values.
        init: String,
        /// The problem.
        problem: String,
    },
    /// An adapter would take no optimizer step.
    #[error("adapter `{adapter}` would train for 0 steps: `train.num_epochs` is {epochs}")]
    NoSteps {
        /// Name of the adapter.
        adapter: String,
        /// The configured number of epochs.
        epochs: f64,
    },
    /// The device cannot compute in the configured type.
    #[error("this device cannot compute in `{dtype}`")]
    UnsupportedDtype {
        /// The type.
        dtype: &'static str,
    },
    /// A prompt cannot be answered.
    #[error(transparent)]
    Inference(InferenceError),
    /// `chat` needs a chat template, and the tokenizer has none.
    #[error("the tokenizer in `{}` has no chat template", path.display())]
    NoChatTemplate {
        /// Model directory.
        path: PathBuf,
    },
}

/// Adds `path` to the error of writing it.
pub(crate) fn on<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| TrainerError::Write {
        path: path.to_owned(),
        source,
    })
}

fn rows_with(preference: Option<Preference>) -> &'static str {
    match preference {
        None => "rows without preferences",
        Some(Preference::Pairs) => "rows with a chosen and a rejected completion",
        Some(Preference::Rated) => "rows with a completion and a label",
        Some(Preference::Paraphrases) => "rows with a text and its paraphrase",
    }
}

fn added(new: &[String]) -> String {
    match new {
        [] => String::new(),
        new => format!(", and `{}` new", new.join("`, `")),
    }
}

fn listed(problems: &[String]) -> String {
    let problem = |problem: &String| format!("; {problem}");
    problems.iter().map(problem).collect()
}

impl TrainerError {
    pub(crate) fn start(config: &AdapterConfig, problem: String) -> Self {
        Self::Start {
            adapter: config.name.clone(),
            init: config.lora.init_lora_weights.name().unwrap_or_default(),
            problem,
        }
    }

    /// True if a device has run out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } | Self::DoesNotFit(_) => true,
            Self::Model(error) | Self::Pipeline(PipelineError::Model(error)) => {
                error.is_out_of_memory()
            }
            _ => false,
        }
    }

    /// True if the disk failed, rather than the data to be written.
    pub(crate) fn is_of_storage(&self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::Model(ModelError::Write { .. })
        )
    }

    /// True if a file cannot be read that may come back later.
    pub(crate) fn is_of_an_absent_file(&self) -> bool {
        match self {
            Self::Data(DataError::Io { .. } | DataError::Changed(_))
            | Self::Model(ModelError::Read { .. }) => true,
            Self::InitFrom { source, .. } => source.is_of_an_absent_file(),
            _ => false,
        }
    }
}

/// Formats "8.10 GiB of 8.00 GiB".
fn of(used: u64, limit: u64) -> String {
    sizes(used, limit).join(" of ")
}

fn in_a_row(times: usize) -> String {
    match times {
        1 => String::new(),
        times => format!(" {times} times in a row"),
    }
}

impl From<InferenceError> for TrainerError {
    fn from(error: InferenceError) -> Self {
        match error {
            InferenceError::Pipeline(error) => error.into(),
            error => Self::Inference(error),
        }
    }
}

impl From<PipelineError> for TrainerError {
    fn from(error: PipelineError) -> Self {
        match error {
            PipelineError::Model(error) => Self::Model(error),
            PipelineError::Adapter(error) => Self::Adapter(error),
            PipelineError::Partition(error) => Self::Partition(error),
            PipelineError::OutOfMemory {
                layers,
                used,
                limit,
            } => Self::OutOfMemory {
                layers,
                used,
                limit,
            },
            error => Self::Pipeline(error),
        }
    }
}
