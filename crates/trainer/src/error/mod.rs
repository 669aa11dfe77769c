//! What can end a run, and what to do about it.

mod hint;
mod shell;

use std::{
    error::Error,
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use batchlora::BatchLoraError;
use loraloom_config::ConfigError;
use loraloom_data::{DataError, TemplateError};
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

/// What can end a run. A single task's failure does not: it is an
/// [`Outcome`](crate::Outcome) of that task.
#[derive(Debug, Error)]
pub enum TrainerError {
    /// The configuration cannot be written out.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Rows, templates or the tokenizer.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The chat template refuses the prompt.
    #[error("the chat template failed: {0}")]
    Template(#[from] TemplateError),
    /// Weights, adapters or the device.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Adapters and batch do not fit each other.
    #[error(transparent)]
    Adapter(#[from] BatchLoraError),
    /// The scheduler and the trainer disagree.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    /// A scheduler decided what cannot be done.
    #[error("the scheduler's decision cannot be carried out: {problem}")]
    Decision {
        /// What is wrong with it.
        problem: String,
    },
    /// Stages cannot be made or do not work together.
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
    /// Memory ran out, and nothing is left that could be put off or made smaller.
    #[error("the run does not fit in memory: {0}")]
    DoesNotFit(#[source] Box<TrainerError>),
    /// Layers cannot be spread over the stages.
    #[error("`pipeline`: {0}")]
    Partition(#[from] PartitionError),
    /// A plan for a pipeline of impossible speeds.
    #[error("cannot simulate the pipeline: {0}")]
    Simulation(#[from] TimelineError),
    /// Where a run's tasks come from cannot be read or written.
    #[error("{0}")]
    Source(#[source] SourceError),
    /// A dataset has other rows than when its task was submitted.
    #[error(
        "the rows of dataset `{dataset}` were BLAKE3 {before} when the task was submitted and are {now}; \
         restore them, then resume the task"
    )]
    DatasetChanged {
        /// Its name.
        dataset: String,
        /// Digest of the rows that were submitted.
        before: String,
        /// Digest of the rows that were read.
        now: String,
    },
    /// Nothing to train on.
    #[error("no device for any stage")]
    NoStage,
    /// Stages on workers without a token.
    #[error("stages are on workers, but there is no `pipeline.token_file`")]
    NoToken,
    /// The workers' token cannot be read.
    #[error("cannot read the token in `{}`: {source}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The run directory already holds a run.
    #[error("`{}` already holds a run", path.display())]
    RunExists {
        /// The run directory.
        path: PathBuf,
    },
    /// Checkpoints that may be there cannot be told.
    #[error("cannot list the checkpoints in `{}`: {source}", path.display())]
    Unlisted {
        /// Where they are.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The run directory cannot be written.
    #[error("cannot write `{}`: {source}", path.display())]
    Write {
        /// What was to be written.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another process trains into the run directory.
    #[error("another process is training the run in `{}`", path.display())]
    RunInUse {
        /// The run directory.
        path: PathBuf,
    },
    /// There is nothing to go on from.
    #[error(
        "`{}` {}{}", path.display(),
        if *is_run { "has no checkpoint to resume from" } else { "is not a run directory" },
        listed(problems)
    )]
    NoCheckpoint {
        /// The run directory.
        path: PathBuf,
        /// Whether it is one.
        is_run: bool,
        /// What is wrong with the checkpoints that it has.
        problems: Vec<String>,
    },
    /// A checkpoint cannot be read, or made.
    #[error("checkpoint: {problem}")]
    Checkpoint {
        /// Why not.
        problem: String,
    },
    /// A configuration that does not go on with the run.
    #[error("`{key}` was {saved} in the run and is {now} now")]
    ConfigChanged {
        /// The key.
        key: String,
        /// What the run has.
        saved: String,
        /// What it is asked to go on with.
        now: String,
        /// The run directory.
        run: PathBuf,
    },
    /// A configuration without an adapter of the run that it is to go on with.
    #[error("adapter `{adapter}` of the run is gone{}", added(new))]
    AdapterGone {
        /// Its name.
        adapter: String,
        /// Names that the run has not.
        new: Vec<String>,
        /// The run directory.
        run: PathBuf,
    },
    /// A model that the adapters of a run were not made for.
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
    /// A sweep that cannot be stopped early as asked.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// The directory that a run writes to is not where it was.
    #[error(
        "the run directory `{}` was removed, moved or replaced while it was in use{}", path.display(),
        if lost.is_empty() { String::new() } else { format!("; not saved: {}", lost.join(", ")) }
    )]
    DirectoryGone {
        /// Where it was.
        path: PathBuf,
        /// The adapters that were training, with their steps.
        lost: Vec<String>,
    },
    /// Nothing can be saved any more.
    #[error("saving has failed{}: {problem}", in_a_row(*times))]
    SavesFailed {
        /// How many.
        times: usize,
        /// What was wrong with the last.
        problem: String,
    },
    /// A token that the model has no embedding for.
    #[error(
        "dataset `{dataset}` has token {token}, but the model's vocabulary ends at {vocabulary}"
    )]
    TokenBeyondVocabulary {
        /// Name of the dataset.
        dataset: String,
        /// The token.
        token: u32,
        /// Rows of the embedding.
        vocabulary: usize,
    },
    /// What an adapter is to begin from cannot be.
    #[error("adapter `{adapter}` cannot begin from `{}`: {source}", directory.display())]
    InitFrom {
        /// Name of the adapter.
        adapter: String,
        /// Its `init_from`.
        directory: PathBuf,
        /// Why not.
        source: Box<TrainerError>,
    },
    /// An adapter would take no optimizer step.
    #[error("adapter `{adapter}` would train for 0 steps: `train.num_epochs` is {epochs}")]
    NoSteps {
        /// Name of the adapter.
        adapter: String,
        /// What the configuration says.
        epochs: f64,
    },
    /// The device cannot compute in the type asked for.
    #[error("this device cannot compute in `{dtype}`")]
    UnsupportedDtype {
        /// The type.
        dtype: &'static str,
    },
    /// Generation was asked for more than the model can hold.
    #[error("a prompt of {prompt} tokens leaves no room in a context of {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// The model's `max_position_embeddings`.
        context: usize,
    },
    /// A prompt without tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// `chat` was asked for and the tokenizer has no template.
    #[error("the tokenizer in `{}` has no chat template", path.display())]
    NoChatTemplate {
        /// Model directory.
        path: PathBuf,
    },
}

/// The result of writing `path`.
pub(crate) fn on<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| TrainerError::Write {
        path: path.to_owned(),
        source,
    })
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
    /// Whether a device has run out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } | Self::DoesNotFit(_) => true,
            Self::Model(error) | Self::Pipeline(PipelineError::Model(error)) => {
                error.is_out_of_memory()
            }
            _ => false,
        }
    }

    /// Whether it is the disk that fails, and not what is to be written.
    pub(crate) fn is_of_storage(&self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::Model(ModelError::Write { .. })
        )
    }

    /// Whether a file cannot be read that may be back later.
    pub(crate) fn is_of_an_absent_file(&self) -> bool {
        match self {
            Self::Data(DataError::Io { .. }) | Self::Model(ModelError::Read { .. }) => true,
            Self::InitFrom { source, .. } => source.is_of_an_absent_file(),
            _ => false,
        }
    }
}

/// "8.10 GiB of 8.00 GiB".
fn of(used: u64, limit: u64) -> String {
    sizes(used, limit).join(" of ")
}

fn in_a_row(times: usize) -> String {
    match times {
        1 => String::new(),
        times => format!(" {times} times in a row"),
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
