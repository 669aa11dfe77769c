//! A server over a service that answers as told. Only this file knows the service's other end.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use loraloom_data::Tokenizer;
use loraloom_inference::{
    AnswerStream, Ask, Command, Finish, ModelCard, Replace, RequestId, Service, ServiceError,
    Stats, Token,
};
use loraloom_server::{
    Client,
    http::{HttpLimits, HttpState, Keys, serve},
};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::sleep,
};

/// The model's longest sequence.
pub(crate) const CONTEXT: usize = 512;

/// The answer to a question.
pub(crate) enum Script {
    /// A text, then EOS.
    Say(&'static str),
    /// A text that the most tokens cut.
    Cut(&'static str),
    /// Tokens one by one, then EOS.
    Tokens(Vec<u32>),
    /// A token every few milliseconds, until the request is cancelled.
    Forever,
    /// A text after a pause.
    Slow(Duration, &'static str),
    /// A text, then an error.
    Fail(&'static str),
    Refuse(ServiceError),
}

/// A running server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) tokenizer: Arc<Tokenizer>,
    asks: Arc<Mutex<Vec<Ask>>>,
    loads: Arc<Mutex<Vec<(String, String, Replace)>>>,
    cancelled: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<usize>>,
    runtime: Runtime,
}

pub(crate) fn tokenizer() -> Tokenizer {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/tiny-llama");
    Tokenizer::load(directory).unwrap()
}

/// A server without keys.
pub(crate) fn start(script: impl Fn(&Ask) -> Script + Send + 'static) -> Server {
    start_with(HttpLimits::default(), None, script)
}

pub(crate) fn start_with(
    limits: HttpLimits,
    keys: Option<Keys>,
    script: impl Fn(&Ask) -> Script + Send + 'static,
) -> Server {
    start_with_queue(limits, keys, None, script)
}

/// A server with the queue of a run.
pub(crate) fn start_with_queue(
    limits: HttpLimits,
    keys: Option<Keys>,
    queue: Option<Client>,
    script: impl Fn(&Ask) -> Script + Send + 'static,
) -> Server {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (service, commands) = Service::channel();
    let fake = Fake {
        tokenizer: Arc::new(tokenizer()),
        asks: Arc::default(),
        loads: Arc::default(),
        cancelled: Arc::default(),
    };
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let mut state = HttpState::new(service, tokenizer(), CONTEXT, keys, limits);
    if let Some(client) = queue {
        state = state.with_queue(client);
    }
    let served = runtime.spawn(serve(listener, state, async {
        let _ = stopped.await;
    }));
    let server = Server {
        address,
        tokenizer: Arc::clone(&fake.tokenizer),
        asks: Arc::clone(&fake.asks),
        loads: Arc::clone(&fake.loads),
        cancelled: Arc::clone(&fake.cancelled),
        stop: Some(stop),
        served: Some(served),
        runtime,
    };
    server.runtime.spawn(fake.run(commands, script));
    server
}

impl Server {
    /// The questions so far.
    pub(crate) fn asks(&self) -> Vec<Ask> {
        self.asks.lock().unwrap().clone()
    }

    /// Names, paths and what they replace.
    pub(crate) fn loads(&self) -> Vec<(String, String, Replace)> {
        self.loads.lock().unwrap().clone()
    }

    /// Waits until so many answers were cancelled.
    pub(crate) fn wait_for_cancelled(&self, count: usize) {
        let start = Instant::now();
        while self.cancelled.load(Ordering::SeqCst) < count {
            assert!(start.elapsed() < Duration::from_secs(10), "it goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the server without waiting.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits for its end, and returns the connections that were cut off.
    pub(crate) fn wait(&mut self) -> usize {
        let served = self.served.take().unwrap();
        self.runtime.block_on(served).unwrap()
    }
}

struct Fake {
    tokenizer: Arc<Tokenizer>,
    asks: Arc<Mutex<Vec<Ask>>>,
    loads: Arc<Mutex<Vec<(String, String, Replace)>>>,
    cancelled: Arc<AtomicUsize>,
}

impl Fake {
    async fn run(
        self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        script: impl Fn(&Ask) -> Script,
    ) {
        let models = [card("base", None), card("org/sql", Some("base"))];
        let known = models.clone().map(|model| model.name).to_vec();
        let unknown = |name: String| ServiceError::UnknownModel {
            name,
            known: known.clone(),
        };
        while let Some(command) = commands.recv().await {
            match command {
                Command::Models(reply) => drop(reply.send(Ok(models.to_vec()))),
                Command::Ask(ask, reply) if !known.contains(&ask.model) => {
                    drop(reply.send(Err(unknown(ask.model))));
                }
                Command::Ask(ask, reply) => {
                    let script = script(&ask);
                    self.asks.lock().unwrap().push((*ask).clone());
                    let answer = match script {
                        Script::Refuse(error) => Err(error),
                        script => Ok(self.answer(*ask, script)),
                    };
                    drop(reply.send(answer));
                }
                Command::Load(name, path, replaces, reply) => {
                    let result = match name.as_str() {
                        "taken" => Err(ServiceError::NameTaken { name }),
                        "broken" => Err(ServiceError::Adapter("no weights".to_owned())),
                        "newer" => Err(ServiceError::OtherGeneration {
                            name,
                            expected: "a".to_owned(),
                            found: "b".to_owned(),
                        }),
                        _ => {
                            let path = path.display().to_string();
                            self.loads
                                .lock()
                                .unwrap()
                                .push((name.clone(), path, replaces));
                            Ok(card(&name, Some("base")))
                        }
                    };
                    drop(reply.send(result));
                }
                Command::Unload(name, reply) if !known.contains(&name) => {
                    drop(reply.send(Err(unknown(name))));
                }
                Command::Unload(_, reply) => drop(reply.send(Ok(()))),
                Command::Stats(reply) => {
                    let stats = Stats {
                        running: 3,
                        blocks: 8,
                        free_blocks: 6,
                        fetches: 7,
                        prompt_tokens: 11,
                        generated_tokens: 13,
                        ..Stats::default()
                    };
                    drop(reply.send(Ok(stats)));
                }
                Command::Read(_) => unreachable!("only a core sends it"),
            }
        }
    }

    fn answer(&self, ask: Ask, script: Script) -> AnswerStream {
        let encode = |text: &str| self.tokenizer.encode(text).unwrap();
        let eos = |mut ids: Vec<u32>| {
            ids.push(1);
            ids
        };
        let (ids, last) = match &script {
            Script::Say(text) | Script::Slow(_, text) => (eos(encode(text)), Finish::Stop),
            Script::Cut(text) => (encode(text), Finish::Length),
            Script::Tokens(ids) => (eos(ids.clone()), Finish::Stop),
            Script::Fail(text) => (encode(text), Finish::Stop),
            Script::Forever => (encode(" yes").repeat(100_000), Finish::Length),
            Script::Refuse(_) => (Vec::new(), Finish::Stop),
        };
        let (tokens, receiver) = mpsc::unbounded_channel();
        let cancelled = Arc::clone(&self.cancelled);
        tokio::spawn(async move {
            if let Script::Slow(pause, _) = script {
                sleep(pause).await;
            }
            let count = ids.len();
            for (index, id) in ids.into_iter().enumerate() {
                let is_last = index + 1 == count && !matches!(script, Script::Fail(_));
                let token = Token {
                    request: RequestId(0),
                    id,
                    log_prob: -0.5,
                    top: (0..ask.top_log_probs)
                        .map(|top| (10 + top as u32, -1.0 - top as f32))
                        .collect(),
                    finish: is_last.then_some(last),
                };
                if tokens.send(Ok(token)).is_err() {
                    cancelled.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                if matches!(script, Script::Forever) {
                    sleep(Duration::from_millis(2)).await;
                }
            }
            if matches!(script, Script::Fail(_)) {
                let _ = tokens.send(Err(ServiceError::Failed("a device is gone".to_owned())));
            }
        });
        AnswerStream::new("g1".to_owned(), receiver)
    }
}

fn card(name: &str, parent: Option<&str>) -> ModelCard {
    ModelCard {
        name: name.to_owned(),
        parent: parent.map(str::to_owned),
        generation: "g1".to_owned(),
        rank: 8,
        bytes: 1024,
    }
}
