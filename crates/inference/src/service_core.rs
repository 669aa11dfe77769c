use std::{
    collections::{HashMap, HashSet},
    sync::mpsc,
    thread,
    time::Duration,
};

use loraloom_pipeline::Pipeline;
use tokio::sync::{
    mpsc::UnboundedReceiver, mpsc::UnboundedSender, mpsc::unbounded_channel, oneshot,
};

use crate::{
    AdapterStore, AnswerStream, Ask, Command, Engine, EngineConfig, EngineRequest, Generation,
    InferenceError, ModelCard, ReadFiles, Replace, RequestId, Service, ServiceError, Stats, Token,
};

/// How long a [`ServiceCore`] waits for an adapter that is being read before it looks for commands.
const WAIT: Duration = Duration::from_millis(2);

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
    /// Adapters that threads of their own are reading.
    reading: usize,
    loads: (mpsc::Sender<Load>, mpsc::Receiver<Load>),
    open: HashMap<RequestId, Open>,
    stats: Stats,
}

/// A request that is being answered.
#[derive(Debug)]
struct Open {
    generation: Generation,
    tokens: UnboundedSender<Result<Token, ServiceError>>,
}

/// An adapter that was read.
#[derive(Debug)]
struct Load {
    name: String,
    files: Result<ReadFiles, ServiceError>,
    replaces: Replace,
    reply: oneshot::Sender<Result<ModelCard, ServiceError>>,
}

impl ServiceCore {
    /// A core with empty caches, and the handle that asks it.
    pub fn new(pipeline: &Pipeline, config: ServiceConfig, store: AdapterStore) -> (Self, Service) {
        let (service, commands) = Service::channel();
        let core = Self {
            engine: Engine::new(pipeline, config.engine),
            config,
            store,
            commands,
            reading: 0,
            loads: mpsc::channel(),
            open: HashMap::new(),
            stats: Stats::default(),
        };
        (core, service)
    }

    /// Does what was asked since the last turn, and computes the next tokens. Waits for a call if there is nothing to
    /// do. `false` if nobody can ask any more and all is answered.
    ///
    /// # Errors
    /// If the pipeline fails. All open requests have failed with it.
    pub fn turn(&mut self, pipeline: &mut Pipeline) -> Result<bool, InferenceError> {
        let is_idle = self.engine.requests() == 0;
        if is_idle && self.reading == 0 {
            match self.commands.blocking_recv() {
                Some(command) => self.execute(command),
                None => return Ok(false),
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.execute(command);
        }
        self.finish_loads(if is_idle { WAIT } else { Duration::ZERO });
        let computed = self.compute(pipeline);
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
            Command::Ask(ask, reply) => {
                let _ = reply.send(self.ask(*ask));
            }
            Command::Load(name, directory, replaces, reply) => {
                let (read, loads) = (self.store.reader(), self.loads.0.clone());
                self.reading += 1;
                thread::spawn(move || {
                    let files = ReadFiles::new(&directory, &read);
                    let _ = loads.send(Load {
                        name,
                        files,
                        replaces,
                        reply,
                    });
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
        }
    }

    fn finish_loads(&mut self, mut wait: Duration) {
        while self.reading > 0 {
            let Ok(load) = self.loads.1.recv_timeout(wait) else {
                break;
            };
            self.reading -= 1;
            wait = Duration::ZERO;
            let registered = load
                .files
                .and_then(|files| self.store.register(&load.name, files, &load.replaces));
            let _ = load.reply.send(registered);
        }
    }

    fn ask(&mut self, ask: Ask) -> Result<AnswerStream, ServiceError> {
        let waiting = self.engine.waiting();
        if waiting >= self.config.max_waiting {
            return Err(ServiceError::Busy { waiting });
        }
        let (generation, digest) = self.store.begin(&ask.model)?;
        let prompt_tokens = ask.prompt.len() as u64;
        let submitted = self.engine.submit(EngineRequest {
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
