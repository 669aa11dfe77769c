use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use loraloom_pipeline::Pipeline;
use tokio::sync::{
    mpsc::UnboundedReceiver, mpsc::UnboundedSender, mpsc::unbounded_channel, oneshot,
};

use crate::{
    AdapterStore, AnswerStream, Ask, Command, Engine, EngineConfig, EngineRequest, FoundWeights,
    Generation, InferenceError, ModelCard, ReadFiles, Replace, RequestId, Service, ServiceError,
    Stats, Token,
};

/// How long a [`ServiceCore`] waits for an adapter that is being read, or for training, before it looks for commands.
const WAIT: Duration = Duration::from_millis(2);

/// Limits of a [`ServiceCore`].
#[derive(Debug, Clone, Copy)]
pub struct ServiceConfig {
    /// Limits of the engine.
    pub engine: EngineConfig,
    /// Requests that may wait.
    pub max_waiting: usize,
}

/// What else uses the devices.
#[derive(Debug, Clone)]
pub struct Neighbour {
    /// True while it uses them.
    pub is_busy: Arc<AtomicBool>,
    /// Most of the time that answers take then, between 0 and 1.
    pub share: f64,
}

/// Answers what [`Service`]s ask, in turns of whoever owns the pipeline.
#[derive(Debug)]
pub struct ServiceCore {
    config: ServiceConfig,
    engine: Engine,
    store: AdapterStore,
    commands: UnboundedReceiver<Command>,
    pace: Option<Pace>,
    /// Adapters that threads of their own are reading.
    reading: usize,
    reads: (mpsc::Sender<Read>, mpsc::Receiver<Read>),
    open: HashMap<RequestId, Open>,
    stats: Stats,
}

/// A request that is being answered.
#[derive(Debug)]
struct Open {
    generation: Generation,
    tokens: UnboundedSender<Result<Token, ServiceError>>,
}

/// What a thread of its own has read.
#[derive(Debug)]
enum Read {
    Load {
        name: String,
        files: Result<ReadFiles, ServiceError>,
        replaces: Replace,
        reply: oneshot::Sender<Result<ModelCard, ServiceError>>,
    },
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
        neighbour: Option<Neighbour>,
    ) -> (Self, Service) {
        let (service, commands) = Service::channel();
        let core = Self {
            engine: Engine::new(pipeline, config.engine),
            config,
            store,
            commands,
            pace: neighbour.map(Pace::new),
            reading: 0,
            reads: mpsc::channel(),
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
        self.finish_reads(if is_idle { WAIT } else { Duration::ZERO });
        let is_urgent = self.engine.awaits_first_token();
        if let Some(owed) = self.pace.as_mut().and_then(|pace| pace.owed(is_urgent)) {
            thread::sleep(owed.min(WAIT));
            return Ok(true);
        }
        let begun = Instant::now();
        let computed = self.compute(pipeline);
        if let Some(pace) = &mut self.pace {
            pace.took(begun.elapsed());
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
                    self.read(move || Read::Found {
                        found: find(&ask.model),
                        ask,
                        reply,
                    });
                }
                (_, begun) => {
                    let _ = reply.send(begun.and_then(|begun| self.ask(*ask, begun)));
                }
            },
            Command::Load(name, directory, replaces, reply) => {
                let read = self.store.reader();
                self.read(move || Read::Load {
                    name,
                    files: ReadFiles::new(&directory, &read),
                    replaces,
                    reply,
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

    /// Reads in a thread of its own.
    fn read(&mut self, read: impl FnOnce() -> Read + Send + 'static) {
        let reads = self.reads.0.clone();
        self.reading += 1;
        thread::spawn(move || {
            let _ = reads.send(read());
        });
    }

    fn finish_reads(&mut self, mut wait: Duration) {
        while self.reading > 0 {
            let Ok(read) = self.reads.1.recv_timeout(wait) else {
                break;
            };
            self.reading -= 1;
            wait = Duration::ZERO;
            match read {
                Read::Load {
                    name,
                    files,
                    replaces,
                    reply,
                } => {
                    let registered =
                        files.and_then(|files| self.store.register(&name, files, &replaces));
                    let _ = reply.send(registered);
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

/// Leaves a neighbour its part of the time.
#[derive(Debug)]
struct Pace {
    neighbour: Neighbour,
    /// Until then the devices are the neighbour's.
    until: Instant,
}

impl Pace {
    /// What may be owed when a request waits for its first token.
    const BURST: Duration = Duration::from_secs(1);

    fn new(neighbour: Neighbour) -> Self {
        Self {
            neighbour,
            until: Instant::now(),
        }
    }

    /// Notes that answers took so long.
    fn took(&mut self, busy: Duration) {
        let share = self.neighbour.share.clamp(0.01, 1.0);
        let owed = busy.mul_f64((1.0 - share) / share);
        self.until = self.until.max(Instant::now()) + owed;
    }

    /// How long the devices are still the neighbour's.
    fn owed(&mut self, is_urgent: bool) -> Option<Duration> {
        let now = Instant::now();
        if !self.neighbour.is_busy.load(Ordering::Relaxed) {
            self.until = now;
        }
        let owed = self.until.saturating_duration_since(now);
        let may_wait = !is_urgent || owed > Self::BURST;
        (owed > Duration::ZERO && may_wait).then_some(owed)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, atomic::AtomicBool},
        time::Duration,
    };

    use super::{Neighbour, Pace};

    #[test]
    fn a_neighbour_gets_its_part_of_the_time() {
        let busy = Arc::new(AtomicBool::new(true));
        let second = Duration::from_secs(1);
        let mut pace = Pace::new(Neighbour {
            is_busy: Arc::clone(&busy),
            share: 0.25,
        });
        assert_eq!(pace.owed(false), None);
        pace.took(second / 10);
        let owed = pace.owed(false).expect("three times as long");
        assert!(
            owed > second * 29 / 100 && owed <= second * 3 / 10,
            "{owed:?}"
        );
        // A first token does not wait, unless much is owed.
        assert_eq!(pace.owed(true), None);
        pace.took(second);
        let owed = pace.owed(true).expect("three seconds more");
        assert!(owed > second * 3 && owed < second * 4, "{owed:?}");
        busy.store(false, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(pace.owed(false), None);
    }
}
