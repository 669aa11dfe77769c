use std::path::PathBuf;

use loraloom_scheduler::sizes;
use tokio::sync::{mpsc, oneshot};

use crate::{InferenceError, Sampling, Token, service_core::Read};

/// A question to a [`Service`].
#[derive(Debug, Clone)]
pub struct Ask {
    /// Name of the base model or of an adapter.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Most tokens of the answer.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub stop: Vec<u32>,
    /// Number of the likeliest tokens whose log-probabilities are returned with each token.
    pub top_log_probs: usize,
    /// The tenant that sends the request.
    pub tenant: String,
    /// The tenant's part of the service beside those of others, above 0.
    pub weight: f64,
}

/// The tokens of an answer as they come. Dropping it cancels the request.
#[derive(Debug)]
pub struct AnswerStream {
    generation: String,
    tokens: mpsc::UnboundedReceiver<Result<Token, ServiceError>>,
}

impl AnswerStream {
    /// An answer of the tokens that a channel carries.
    pub fn new(
        generation: String,
        tokens: mpsc::UnboundedReceiver<Result<Token, ServiceError>>,
    ) -> Self {
        Self { generation, tokens }
    }

    /// Names the weights that answer.
    pub fn generation(&self) -> &str {
        &self.generation
    }

    /// The next token; `None` behind the last.
    pub async fn next(&mut self) -> Option<Result<Token, ServiceError>> {
        self.tokens.recv().await
    }
}

/// A model that a [`Service`] answers with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCard {
    /// Its name.
    pub name: String,
    /// The base model of an adapter.
    pub parent: Option<String>,
    /// Names its weights.
    pub generation: String,
    /// Rank of an adapter; 0 for the base model.
    pub rank: usize,
    /// Bytes of its weights.
    pub bytes: u64,
}

/// Figures of a [`Service`] since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Blocks of keys and values that no request holds.
    pub free_blocks: usize,
    /// All blocks of keys and values.
    pub blocks: usize,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub generated_tokens: u64,
    /// Times that a running request gave its blocks up.
    pub preemptions: u64,
    /// Adapters that are loaded.
    pub adapters: usize,
    /// Adapters whose weights are on the device.
    pub resident_adapters: usize,
    /// Times that an adapter's weights were brought to the device.
    pub fetches: u64,
}

/// What a load may replace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replace {
    /// The name must be free.
    Nothing,
    /// Any adapter of the name.
    Anything,
    /// Only this generation of the adapter.
    Generation(String),
}

/// Errors of a [`Service`].
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// No model has the name.
    #[error("the model `{name}` does not exist")]
    UnknownModel {
        /// The name.
        name: String,
        /// Names of all models.
        known: Vec<String>,
    },
    /// The weights of a name cannot be had.
    #[error("the model `{name}` does not exist: {reason}")]
    NoWeights {
        /// The name.
        name: String,
        /// Why.
        reason: String,
    },
    /// No adapter can have the name.
    #[error("`{name}` is the base model")]
    BaseName {
        /// The name.
        name: String,
    },
    /// An adapter has the name.
    #[error("the lora adapter `{name}` has already been loaded")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The adapter was replaced meanwhile.
    #[error("the lora adapter `{name}` has the generation {found}, not {expected}")]
    OtherGeneration {
        /// Its name.
        name: String,
        /// The generation to replace.
        expected: String,
        /// Its generation.
        found: String,
    },
    /// The queue is full.
    #[error("{waiting} requests wait already")]
    Busy {
        /// Number of requests that wait.
        waiting: usize,
    },
    /// An adapter's files cannot be used.
    #[error("{0}")]
    Adapter(String),
    /// An adapter does not fit on the device.
    #[error("the adapter in `{adapter}` takes {} on the device, where all adapters may take {}",
        sizes(*bytes, *limit)[0], sizes(*bytes, *limit)[1])]
    AdapterTooLarge {
        /// Its directory.
        adapter: String,
        /// Bytes that it takes.
        bytes: u64,
        /// Bytes of all adapters.
        limit: u64,
    },
    /// The engine refuses the question.
    #[error(transparent)]
    Refused(InferenceError),
    /// The engine failed.
    #[error("{0}")]
    Failed(String),
    /// The service ends.
    #[error("the server is stopping")]
    Stopped,
}

type Reply<T> = oneshot::Sender<Result<T, ServiceError>>;

/// A call of a [`Service`] with the way to answer it.
#[derive(Debug)]
pub enum Command {
    /// [`Service::models`].
    Models(Reply<Vec<ModelCard>>),
    /// [`Service::ask`].
    Ask(Box<Ask>, Reply<AnswerStream>),
    /// [`Service::load`].
    Load(String, PathBuf, Replace, Reply<ModelCard>),
    /// [`Service::unload`].
    Unload(String, Reply<()>),
    /// [`Service::stats`].
    Stats(Reply<Stats>),
    /// A [`ServiceCore`](crate::ServiceCore) sends itself the weights that it waited for.
    Read(Box<Read>),
}

/// Asks the models of a [`ServiceCore`](crate::ServiceCore), from any thread. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Service {
    commands: mpsc::UnboundedSender<Command>,
}

impl Service {
    /// Loads an adapter in the place of any of its name, without waiting for it. What is wrong with it is not told: the
    /// name then keeps its weights.
    pub fn refresh(&self, name: String, directory: PathBuf) {
        let (reply, _) = oneshot::channel();
        let load = Command::Load(name, directory, Replace::Anything, reply);
        // A service that ends needs no save.
        let _ = self.commands.send(load);
    }

    /// A service, and what receives its calls.
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        (Self { commands }, receiver)
    }

    /// Sends commands as long as someone else can.
    pub(crate) fn weak(&self) -> mpsc::WeakUnboundedSender<Command> {
        self.commands.downgrade()
    }

    /// False once nothing answers any more.
    pub fn is_alive(&self) -> bool {
        !self.commands.is_closed()
    }

    /// The base model, then the adapters.
    ///
    /// # Errors
    /// [`ServiceError::Stopped`].
    pub async fn models(&self) -> Result<Vec<ModelCard>, ServiceError> {
        self.call(Command::Models).await
    }

    /// Asks a model.
    ///
    /// # Errors
    /// An unknown model, a full queue, a prompt that does not fit, [`ServiceError::Stopped`].
    pub async fn ask(&self, ask: Ask) -> Result<AnswerStream, ServiceError> {
        self.call(|reply| Command::Ask(Box::new(ask), reply)).await
    }

    /// Loads an adapter.
    ///
    /// # Errors
    /// A name that is taken, another generation, files that cannot be used, [`ServiceError::Stopped`].
    pub async fn load(
        &self,
        name: String,
        directory: PathBuf,
        replaces: Replace,
    ) -> Result<ModelCard, ServiceError> {
        self.call(|reply| Command::Load(name, directory, replaces, reply))
            .await
    }

    /// Removes an adapter.
    ///
    /// # Errors
    /// An unknown name, [`ServiceError::Stopped`].
    pub async fn unload(&self, name: String) -> Result<(), ServiceError> {
        self.call(|reply| Command::Unload(name, reply)).await
    }

    /// Figures since the start.
    ///
    /// # Errors
    /// [`ServiceError::Stopped`].
    pub async fn stats(&self) -> Result<Stats, ServiceError> {
        self.call(Command::Stats).await
    }

    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, ServiceError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(command(reply));
        sent.map_err(|_| ServiceError::Stopped)?;
        answer.await.unwrap_or(Err(ServiceError::Stopped))
    }
}
