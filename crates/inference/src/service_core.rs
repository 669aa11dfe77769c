use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use loraloom_pipeline::Pipeline;
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel},
    oneshot,
};

use crate::{
    AdapterStore, AnswerStream, Ask, Command, Engine, EngineConfig, EngineRequest, FoundWeights,
    Generation, InferenceError, ModelCard, Neighbour, OneThread, ReadFiles, Replace, RequestId,
    Sampling, Service, ServiceError, Stats, Token, neighbour::Pace,
};

/// How long a [`ServiceCore`] waits for training before it looks for commands.
const WAIT: Duration = Duration::from_millis(2);

/// Tokens of the prompt that warms a core up.
const WARM_UP: usize = 32;

/// Limits of a [`ServiceCore`].
#[derive(Debug, Clone, Copy)]
pub struct ServiceConfig {
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
    commands: UnboundedReceiver<Command>,
    /// Sends it weights that it waits for. Weak, so that the core ends with the last [`Service`].
    to_itself: WeakUnboundedSender<Command>,
    reader: OneThread,
    neighbour: Option<(Arc<Neighbour>, Pace)>,
    open: HashMap<RequestId, Open>,
    stats: Stats,
}

/// A request that is being answered.
#[derive(Debug)]
struct Open {
    generation: Generation,
    tokens: UnboundedSender<Result<Token, ServiceError>>,
}

/// Weights that a [`ServiceCore`] waited for, and what they are for.
#[derive(Debug)]
pub enum Read {
    /// Of an adapter that is loaded.
    Load {
        name: String,
        files: Result<ReadFiles, ServiceError>,
        replaces: Replace,
        reply: oneshot::Sender<Result<ModelCard, ServiceError>>,
        /// Dropped once it is done.
        registered: mpsc::Sender<()>,
    },
    /// Of a name that is none of the store's.
    Found {
        found: Result<Option<FoundWeights>, String>,
        ask: Box<Ask>,
        reply: oneshot::Sender<Result<AnswerStream, ServiceError>>,
    },
}

impl ServiceCore {
    /// A core with empty caches, and the handle that asks it. `neighbour` uses the same devices.
    pub fn new(
        pipeline: &Pipeline,
        config: ServiceConfig,
        store: AdapterStore,
        neighbour: Option<Arc<Neighbour>>,
    ) -> (Self, Service) {
        let (service, commands) = Service::channel();
        let mut engine = Engine::new(pipeline, config.engine);
        if let Some(neighbour) = &neighbour {
            engine.share_accounts(Arc::clone(neighbour));
        }
        let core = Self {
            engine,
            config,
            store,
            commands,
            to_itself: service.weak(),
            reader: OneThread::start(),
            neighbour: neighbour.map(|neighbour| (neighbour, Pace::new())),
            open: HashMap::new(),
            stats: Stats::default(),
        };
        (core, service)
    }

    /// Computes a short answer, so that the first request does not wait for kernels to be compiled and memory to be
    /// touched.
    ///
    /// # Errors
    /// If the pipeline fails.
    pub fn warm_up(&mut self, pipeline: &Pipeline) -> Result<(), InferenceError> {
        let request = EngineRequest {
            generation: Generation::BASE,
            prompt: vec![
                0;
                WARM_UP
                    .min(pipeline.config().max_position_embeddings - 1)
                    .max(1)
            ],
            sampling: Sampling::default(),
            max_tokens: 2,
            stop: Vec::new(),
            top_log_probs: 0,
            tenant: String::new(),
            weight: 1.0,
        };
        match self.engine.submit(request) {
            // Then no request fits that is much longer.
            Err(InferenceError::TooLarge { .. }) => return Ok(()),
            submitted => submitted?,
        };
        while self.engine.requests() > 0 {
            self.engine.step(pipeline, &self.store.places())?;
        }
        if let Some((neighbour, _)) = &self.neighbour {
            // No tenant asked for it.
            neighbour.take_answered();
        }
        Ok(())
    }

    /// Does what was asked since the last turn, and computes the next tokens. Waits for a call if there is nothing to
    /// do. `false` if nobody can ask any more and all is answered.
    ///
    /// # Errors
    /// If the pipeline fails. All open requests have failed with it.
    pub fn turn(&mut self, pipeline: &mut Pipeline) -> Result<bool, InferenceError> {
        if self.engine.requests() == 0 {
            match self.commands.blocking_recv() {
                Some(command) => self.execute(command),
                None => return Ok(false),
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.execute(command);
        }
        let is_urgent = self.engine.awaits_first_token();
        if let Some((neighbour, pace)) = &mut self.neighbour
            && let Some(owed) = pace.owed(is_urgent, neighbour)
        {
            thread::sleep(owed.min(WAIT));
            return Ok(true);
        }
        let begun = Instant::now();
        let computed = self.compute(pipeline);
        if let Some((neighbour, pace)) = &mut self.neighbour {
            pace.took(begun.elapsed(), neighbour);
        }
        if let Err(error) = &computed {
            let all: Vec<RequestId> = self.open.keys().copied().collect();
            self.fail(&all, &error.to_string());
        }
        computed.map(|()| true)
    }

    fn compute(&mut self, pipeline: &mut Pipeline) -> Result<(), InferenceError> {
        self.cancel_abandoned();
        let in_use: HashSet<Generation> = self.engine.in_use().collect();
        let needed: Vec<Generation> = self.engine.needed().collect();
        if let Some((generation, error)) = self.store.fetch(pipeline, in_use, &needed)? {
            let of = self
                .open
                .iter()
                .filter(|(_, open)| open.generation == generation);
            let ids: Vec<RequestId> = of.map(|(id, _)| *id).collect();
            self.fail(&ids, &error.to_string());
        }
        let tokens = self.engine.step(pipeline, &self.store.places())?;
        self.stats.generated_tokens += tokens.len() as u64;
        for token in tokens {
            if !token.log_prob.is_finite() {
                self.fail(
                    &[token.request],
                    "what the model computes is not finite: the adapter may be broken",
                );
                continue;
            }
            let (id, is_last) = (token.request, token.finish.is_some());
            if let Some(open) = self.open.get(&id) {
                // Whoever does not listen is noticed at the next turn.
                let _ = open.tokens.send(Ok(token));
            }
            if is_last {
                self.close(id);
            }
        }
        Ok(())
    }

    /// Whoever does not wait for a reply does not miss it.
    fn execute(&mut self, command: Command) {
        match command {
            Command::Ask(ask, reply) => match (self.store.finder(), self.store.begin(&ask.model)) {
                (Some(find), Err(ServiceError::UnknownModel { .. })) => {
                    let (name, send) = (ask.model.clone(), self.send_to_itself());
                    let take = |found| send(Read::Found { found, ask, reply });
                    find(&name, Box::new(take));
                }
                (_, begun) => {
                    let _ = reply.send(begun.and_then(|begun| self.ask(*ask, begun)));
                }
            },
            Command::Load(name, directory, replaces, reply) => {
                let (read, send) = (self.store.reader(), self.send_to_itself());
                let (registered, is_registered) = mpsc::channel();
                self.reader.spawn(move || {
                    send(Read::Load {
                        name,
                        files: ReadFiles::new(&directory, &read),
                        replaces,
                        reply,
                        registered,
                    });
                    // Memory holds one copy of an adapter that many load.
                    let _ = is_registered.recv();
                });
            }
            Command::Unload(name, reply) => {
                let _ = reply.send(self.store.unregister(&name));
            }
            Command::Models(reply) => {
                let _ = reply.send(Ok(self.store.cards()));
            }
            Command::Stats(reply) => {
                let _ = reply.send(Ok(self.stats()));
            }
            Command::Read(read) => self.finish(*read),
        }
    }

    /// Does nothing once nobody can ask any more.
    fn send_to_itself(&self) -> impl FnOnce(Read) + Send + use<> {
        let sender = self.to_itself.clone();
        move |read| {
            if let Some(sender) = sender.upgrade() {
                let _ = sender.send(Command::Read(Box::new(read)));
            }
        }
    }

    fn finish(&mut self, read: Read) {
        match read {
            Read::Load {
                name,
                files,
                replaces,
                reply,
                registered: _registered,
            } => {
                let card = files.and_then(|files| self.store.register(&name, files, &replaces));
                let _ = reply.send(card);
            }
            Read::Found { found, ask, reply } => {
                let name = ask.model.clone();
                let found = found.map_err(|reason| ServiceError::NoWeights { name, reason });
                let begun = found.and_then(|found| match found {
                    Some(found) => self.store.begin_with(found),
                    // It may have been loaded meanwhile.
                    None => self.store.begin(&ask.model),
                });
                let _ = reply.send(begun.and_then(|begun| self.ask(*ask, begun)));
            }
        }
    }

    /// Answers with weights that are [begun](AdapterStore::begin).
    fn ask(
        &mut self,
        ask: Ask,
        (generation, digest): (Generation, String),
    ) -> Result<AnswerStream, ServiceError> {
        let waiting = self.engine.waiting();
        if waiting >= self.config.max_waiting {
            self.store.end(generation);
            return Err(ServiceError::Busy { waiting });
        }
        let prompt_tokens = ask.prompt.len() as u64;
        let submitted = self.engine.submit(EngineRequest {
            generation,
            prompt: ask.prompt,
            sampling: ask.sampling,
            max_tokens: ask.max_tokens,
            stop: ask.stop,
            top_log_probs: ask.top_log_probs,
            tenant: ask.tenant,
            weight: ask.weight,
        });
        let id = submitted.map_err(|error| {
            self.store.end(generation);
            ServiceError::Refused(error)
        })?;
        self.stats.prompt_tokens += prompt_tokens;
        let (sender, tokens) = unbounded_channel();
        let open = Open {
            generation,
            tokens: sender,
        };
        self.open.insert(id, open);
        Ok(AnswerStream::new(digest, tokens))
    }

    /// Ends requests whose answers were dropped.
    fn cancel_abandoned(&mut self) {
        let abandoned = self.open.iter().filter(|(_, open)| open.tokens.is_closed());
        let abandoned: Vec<RequestId> = abandoned.map(|(id, _)| *id).collect();
        for id in abandoned {
            self.engine.cancel(id);
            self.close(id);
        }
    }

    fn fail(&mut self, ids: &[RequestId], reason: &str) {
        for &id in ids {
            self.engine.cancel(id);
            if let Some(open) = self.open.get(&id) {
                let _ = open
                    .tokens
                    .send(Err(ServiceError::Failed(reason.to_owned())));
            }
            self.close(id);
        }
    }

    fn close(&mut self, id: RequestId) {
        if let Some(open) = self.open.remove(&id) {
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
            adapters: self.store.adapters(),
            resident_adapters: self.store.resident(),
            fetches: self.store.fetches(),
            ..self.stats
        }
    }
}
