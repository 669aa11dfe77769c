use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::mpsc,
    time::Duration,
};

use loraloom_pipeline::Pipeline;
use tokio::sync::{mpsc as stream, oneshot};

use crate::{
    AdapterStore, Engine, EngineConfig, Generation, InferenceError, Request, RequestId, Sampling,
    StoreError, Token,
    store::{AdapterCard, ReadAdapter, ReadFiles, Replace},
};

/// How long an idle [`ServiceCore`] waits for a command.
const IDLE: Duration = Duration::from_millis(200);

/// A question to a [`Service`].
#[derive(Debug, Clone)]
pub struct Ask {
    /// Name of an adapter or of the base model.
    pub model: String,
    /// Tokens to continue.
    pub prompt: Vec<u32>,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Most tokens of the answer. The context may leave fewer.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub stop: Vec<u32>,
    /// Number of the likeliest tokens that are returned with each token.
    pub top_log_probs: usize,
}

/// Why a [`Service`] does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The name of a model, or its weights.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The request cannot be answered.
    #[error(transparent)]
    Refused(InferenceError),
    /// Too many requests wait.
    #[error("{waiting} requests wait already")]
    Busy {
        /// Their number.
        waiting: usize,
    },
    /// A pass failed.
    #[error("{0}")]
    Failed(String),
    /// The service has ended.
    #[error("the server is stopping")]
    Stopped,
}

/// What a service has done, and does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Blocks of keys and values that nobody holds.
    pub free_blocks: usize,
    /// All blocks.
    pub blocks: usize,
    /// Tokens of the prompts of all requests so far.
    pub prompt_tokens: u64,
    /// Tokens that were picked so far.
    pub generated_tokens: u64,
    /// How often a request gave its blocks up for an older one.
    pub preemptions: u64,
    /// Adapters that requests can name.
    pub adapters: usize,
    /// Adapters in the pipeline.
    pub resident_adapters: usize,
    /// How often an adapter was copied into the pipeline.
    pub fetches: u64,
}

/// A model that requests can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCard {
    /// Its name.
    pub name: String,
    /// The adapter; `None` for the base model.
    pub adapter: Option<AdapterCard>,
}

/// The tokens of an answer, as they come. Dropping it cancels the request.
#[derive(Debug)]
pub struct Answer {
    generation: String,
    tokens: stream::UnboundedReceiver<Result<Token, ServiceError>>,
}

impl Answer {
    /// The weights that answer; `base` for the base model.
    pub fn generation(&self) -> &str {
        &self.generation
    }

    /// The next token; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Token, ServiceError>> {
        self.tokens.recv().await
    }
}

type Reply<T> = oneshot::Sender<Result<T, ServiceError>>;

enum Command {
    Ask(Ask, Reply<Answer>),
    Register(String, ReadFiles, Replace, Reply<AdapterCard>),
    Unregister(String, Reply<()>),
    Models(Reply<Vec<ModelCard>>),
    Stats(Reply<Stats>),
}

/// Asks the models of a [`ServiceCore`], from any thread. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    commands: mpsc::Sender<Command>,
    read: ReadAdapter,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl Service {
    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, ServiceError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(command(reply));
        sent.map_err(|_| ServiceError::Stopped)?;
        answer.await.map_err(|_| ServiceError::Stopped)?
    }

    /// The models that requests can name, the base model first.
    ///
    /// # Errors
    /// [`ServiceError::Stopped`].
    pub async fn models(&self) -> Result<Vec<ModelCard>, ServiceError> {
        self.call(Command::Models).await
    }

    /// Begins an answer.
    ///
    /// # Errors
    /// If there is no such model, the prompt cannot be answered, or too many requests wait.
    pub async fn ask(&self, ask: Ask) -> Result<Answer, ServiceError> {
        self.call(|reply| Command::Ask(ask, reply)).await
    }

    /// Reads an adapter and gives it a name. Requests that run keep the weights they began with.
    ///
    /// # Errors
    /// If it cannot be read, does not fit, or the name may not be replaced.
    pub async fn load(
        &self,
        name: String,
        directory: PathBuf,
        replaces: Replace,
    ) -> Result<AdapterCard, ServiceError> {
        let read = self.read.clone();
        let files = tokio::task::spawn_blocking(move || ReadFiles::new(&directory, &read));
        let files = files
            .await
            .map_err(|error| ServiceError::Failed(error.to_string()))??;
        self.call(|reply| Command::Register(name, files, replaces, reply))
            .await
    }

    /// Takes a name away. Requests that run keep the weights.
    ///
    /// # Errors
    /// If there is no such name.
    pub async fn unload(&self, name: String) -> Result<(), ServiceError> {
        self.call(|reply| Command::Unregister(name, reply)).await
    }

    /// What the service has done, and does.
    ///
    /// # Errors
    /// [`ServiceError::Stopped`].
    pub async fn stats(&self) -> Result<Stats, ServiceError> {
        self.call(Command::Stats).await
    }
}

/// Limits of a [`ServiceCore`].
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Name of the base model.
    pub base: String,
    /// Limits of the engine.
    pub engine: EngineConfig,
    /// Requests that may wait.
    pub max_waiting: usize,
}

/// Answers what [`Service`]s ask, in turns of whoever owns the pipeline.
#[derive(Debug)]
pub struct ServiceCore {
    config: ServiceConfig,
    engine: Engine,
    store: AdapterStore,
    commands: mpsc::Receiver<Command>,
    open: HashMap<RequestId, Open>,
    stats: Stats,
}

/// A request that is being answered.
#[derive(Debug)]
struct Open {
    generation: Generation,
    tokens: stream::UnboundedSender<Result<Token, ServiceError>>,
}

impl ServiceCore {
    /// A core with the caches of an engine, and the handle that asks it.
    pub fn new(pipeline: &Pipeline, config: ServiceConfig, store: AdapterStore) -> (Self, Service) {
        let (sender, commands) = mpsc::channel();
        let service = Service {
            commands: sender,
            read: store.reader(),
        };
        let core = Self {
            engine: Engine::new(pipeline, config.engine),
            config,
            store,
            commands,
            open: HashMap::new(),
            stats: Stats::default(),
        };
        (core, service)
    }

    /// Does what was asked since the last turn, and computes the next tokens. Waits a little if there is nothing to do.
    /// `false` if nobody can ask any more and all is answered.
    ///
    /// # Errors
    /// If the pipeline fails. All open requests have failed with it.
    pub fn turn(&mut self, pipeline: &mut Pipeline) -> Result<bool, InferenceError> {
        let mut is_open = true;
        if self.engine.requests() == 0 {
            match self.commands.recv_timeout(IDLE) {
                Ok(command) => self.execute(command),
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(true),
                Err(mpsc::RecvTimeoutError::Disconnected) => is_open = false,
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.execute(command);
        }
        let result = self.compute(pipeline);
        if let Err(error) = &result {
            let ids: Vec<RequestId> = self.open.keys().copied().collect();
            for id in ids {
                self.engine.cancel(id);
                self.close(id, Some(ServiceError::Failed(error.to_string())));
            }
        }
        result?;
        Ok(is_open || self.engine.requests() > 0)
    }

    fn compute(&mut self, pipeline: &mut Pipeline) -> Result<(), InferenceError> {
        self.cancel_abandoned();
        let in_use: HashSet<Generation> = self.engine.in_use().collect();
        let needed: Vec<Generation> = self.engine.needed().collect();
        let failed = self.store.fetch(pipeline, in_use, &needed)?;
        if let Some((generation, error)) = failed {
            self.fail(generation, &error);
        }
        let tokens = self.engine.step(pipeline, &self.store.places())?;
        self.stats.generated_tokens += tokens.len() as u64;
        for token in tokens {
            let (id, is_last) = (token.request, token.finish.is_some());
            if let Some(open) = self.open.get(&id) {
                // Whoever does not listen is noticed at the next turn.
                let _ = open.tokens.send(Ok(token));
            }
            if is_last {
                self.close(id, None);
            }
        }
        Ok(())
    }

    fn execute(&mut self, command: Command) {
        // Whoever does not wait for a reply does not miss it.
        match command {
            Command::Ask(ask, reply) => {
                let _ = reply.send(self.ask(ask));
            }
            Command::Register(name, files, replaces, reply) => {
                let _ = reply.send(self.register(&name, files, &replaces));
            }
            Command::Unregister(name, reply) => {
                let _ = reply.send(self.store.unregister(&name).map_err(Into::into));
            }
            Command::Models(reply) => {
                let base = ModelCard {
                    name: self.config.base.clone(),
                    adapter: None,
                };
                let adapters = self.store.cards().map(|card| ModelCard {
                    name: card.name.clone(),
                    adapter: Some(card),
                });
                let _ = reply.send(Ok([base].into_iter().chain(adapters).collect()));
            }
            Command::Stats(reply) => {
                let _ = reply.send(Ok(self.stats()));
            }
        }
    }

    fn register(
        &mut self,
        name: &str,
        files: ReadFiles,
        replaces: &Replace,
    ) -> Result<AdapterCard, ServiceError> {
        if name == self.config.base {
            let name = name.to_owned();
            return Err(StoreError::NameTaken { name }.into());
        }
        Ok(self.store.register(name, files, replaces)?)
    }

    fn ask(&mut self, ask: Ask) -> Result<Answer, ServiceError> {
        let waiting = self.engine.waiting();
        if waiting >= self.config.max_waiting {
            return Err(ServiceError::Busy { waiting });
        }
        let (generation, digest) = if ask.model == self.config.base {
            (Generation::BASE, "base".to_owned())
        } else {
            self.store.begin(&ask.model)?
        };
        let prompt_tokens = ask.prompt.len() as u64;
        let submitted = self.engine.submit(Request {
            generation,
            prompt: ask.prompt,
            sampling: ask.sampling,
            max_tokens: ask.max_tokens,
            stop: ask.stop,
            top_log_probs: ask.top_log_probs,
        });
        let id = submitted.map_err(|error| {
            self.store.end(generation);
            ServiceError::Refused(error)
        })?;
        self.stats.prompt_tokens += prompt_tokens;
        let (sender, tokens) = stream::unbounded_channel();
        let tokens_to = Open {
            generation,
            tokens: sender,
        };
        self.open.insert(id, tokens_to);
        Ok(Answer {
            generation: digest,
            tokens,
        })
    }

    /// Ends requests whose answers were dropped.
    fn cancel_abandoned(&mut self) {
        let abandoned = self.open.iter().filter(|(_, open)| open.tokens.is_closed());
        let abandoned: Vec<RequestId> = abandoned.map(|(id, _)| *id).collect();
        for id in abandoned {
            self.engine.cancel(id);
            self.close(id, None);
        }
    }

    /// Ends the requests of weights that cannot be had.
    fn fail(&mut self, generation: Generation, error: &StoreError) {
        let of = self
            .open
            .iter()
            .filter(|(_, open)| open.generation == generation);
        let ids: Vec<RequestId> = of.map(|(id, _)| *id).collect();
        for id in ids {
            self.engine.cancel(id);
            self.close(id, Some(ServiceError::Failed(error.to_string())));
        }
    }

    fn close(&mut self, id: RequestId, error: Option<ServiceError>) {
        if let Some(open) = self.open.remove(&id) {
            if let Some(error) = error {
                let _ = open.tokens.send(Err(error));
            }
            self.store.end(open.generation);
        }
    }

    fn stats(&self) -> Stats {
        Stats {
            running: self.engine.requests() - self.engine.waiting(),
            waiting: self.engine.waiting(),
            free_blocks: self.engine.free_blocks(),
            blocks: self.config.engine.blocks,
            preemptions: self.engine.preemptions(),
            adapters: self.store.cards().count(),
            resident_adapters: self.store.resident(),
            fetches: self.store.fetches(),
            ..self.stats
        }
    }
}
