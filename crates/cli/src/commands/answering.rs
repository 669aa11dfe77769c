//! Parts of both kinds of `serve` that answer requests: an engine over a pipeline, and HTTP before it.

use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use loraloom_config::MemoryLimit;
use loraloom_data::Tokenizer;
use loraloom_inference::{
    AdapterStore, EngineConfig, InferenceError, Neighbour, Service, ServiceConfig, ServiceCore,
    StoreLimits,
};
use loraloom_model::{BLOCK_TOKENS, LayerCache};
use loraloom_pipeline::{HostMemory, Pipeline, device_memory};
use loraloom_scheduler::{size, sizes};
use loraloom_server::{
    Client,
    http::{self, HttpLimits, HttpState, Keys},
};
use tokio::{runtime::Runtime, task::JoinHandle};

use crate::{arguments::InferenceArguments, exit::Exit, failure::Failure, printer::Printer};

/// Requests that may wait for each that may run. The answers of one request may always wait.
const WAITING: usize = 16;
/// Part of the memory beside the model that adapters may take.
const ADAPTERS: f64 = 0.25;
/// Connections that the system accepts before the server does.
#[cfg(unix)]
const BACKLOG: i32 = 4096;
/// Threads that read requests and write answers.
const THREADS: usize = 2;
/// A stop that takes longer is explained.
const SOON: Duration = Duration::from_millis(500);
/// How often the signal to stop is looked for.
const POLL: Duration = Duration::from_millis(50);

/// An address that is taken, and the keys that requests need.
#[derive(Debug)]
pub(super) struct Entrance {
    listener: TcpListener,
    address: SocketAddr,
    keys: Option<Keys>,
}

impl Entrance {
    /// Reads the keys and takes the address, before anything slow.
    ///
    /// # Errors
    /// If the keys cannot be read, or another program has the address.
    pub(super) fn open(
        address: SocketAddr,
        arguments: &InferenceArguments,
        printer: &Printer,
    ) -> anyhow::Result<Self> {
        let keys = arguments.api_keys.as_deref().map(Keys::load).transpose();
        let keys =
            keys.map_err(|error| Failure::new(Exit::Usage, loraloom_server::with_causes(&error)))?;
        let listener = TcpListener::bind(address).map_err(|error| {
            Failure::new(Exit::Usage, format!("cannot listen on {address}: {error}"))
        })?;
        listener.set_nonblocking(true)?;
        #[cfg(unix)]
        expect_many(&listener)?;
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() && keys.is_none() {
            printer.warning(&format!(
                "{address} can be reached from other machines, and requests need no key: add --api-keys FILE"
            ));
        }
        Ok(Self {
            listener,
            address,
            keys,
        })
    }
}

/// Lets more clients connect at once than the standard library does, and as many of them stay as the system allows.
#[cfg(unix)]
fn expect_many(listener: &TcpListener) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    rustix::net::listen(listener, BACKLOG)?;
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = maximum;
    // Where the system refuses, its own limit is kept.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    Ok(())
}

/// Computes answers. It stays on the thread that made it: devices order work by threads.
pub(super) struct Answerer {
    core: ServiceCore,
    pipeline: Pipeline,
}

impl Answerer {
    /// One that is warm.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn new(
        pipeline: Pipeline,
        limits: &Limits,
        store: AdapterStore,
        neighbour: Option<Arc<Neighbour>>,
    ) -> Result<(Self, Service), InferenceError> {
        let config = ServiceConfig {
            engine: limits.engine,
            max_waiting: (WAITING * limits.engine.max_sequences).max(HttpLimits::default().answers),
        };
        let (mut core, service) = ServiceCore::new(&pipeline, config, store, neighbour);
        core.warm_up(&pipeline)?;
        Ok((Self { core, pipeline }, service))
    }

    /// Answers until nobody can ask any more.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn answer(mut self) -> Result<(), InferenceError> {
        while self.core.turn(&mut self.pipeline)? {}
        Ok(())
    }
}

/// The HTTP interface, on threads of its own.
#[derive(Debug)]
pub(super) struct HttpServer {
    runtime: Runtime,
    server: JoinHandle<usize>,
}

impl HttpServer {
    /// Listens until one of the signals is set, and then until running answers are complete. `queue` is that of a server
    /// that trains.
    ///
    /// # Errors
    /// If the operating system refuses threads.
    pub(super) fn start(
        entrance: Entrance,
        service: Service,
        tokenizer: Tokenizer,
        limits: &Limits,
        queue: Option<Client>,
        stop: Vec<Arc<AtomicBool>>,
        printer: &Printer,
    ) -> anyhow::Result<Self> {
        let (keys, http_limits) = (entrance.keys, HttpLimits::default());
        let mut state = HttpState::new(service, tokenizer, limits.context, keys, http_limits);
        if let Some(client) = queue {
            state = state.with_queue(client);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(entrance.listener)?
        };
        let server = runtime.spawn(http::serve(listener, state, stopped(stop)));
        printer.note(&limits.to_string());
        printer.note(&format!("listening on http://{}", entrance.address));
        Ok(Self { runtime, server })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If a thread panicked.
    pub(super) fn finish(self, printer: &Printer) -> anyhow::Result<()> {
        let mut server = self.server;
        let cut_off = self.runtime.block_on(async {
            if let Ok(cut_off) = tokio::time::timeout(SOON, &mut server).await {
                return cut_off;
            }
            let most = HttpLimits::default().drain.as_secs();
            printer.note(&format!("completing running answers, for at most {most} s"));
            server.await
        })?;
        // A submission that still reads its rows was not accepted, and does not delay the end.
        self.runtime.shutdown_background();
        if cut_off > 0 {
            printer.warning(&format!("connections cut off: {cut_off}"));
        }
        Ok(())
    }
}

async fn stopped(stop: Vec<Arc<AtomicBool>>) {
    while !stop.iter().any(|stop| stop.load(Ordering::Relaxed)) {
        tokio::time::sleep(POLL).await;
    }
}

/// The name of the base model in requests.
pub(super) fn base_name(arguments: &InferenceArguments, model: &Path) -> anyhow::Result<String> {
    if let Some(name) = &arguments.served_model_name {
        return Ok(name.clone());
    }
    let path = model.canonicalize()?;
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(name.to_string_lossy().into_owned())
}

/// Memory of adapters, and of keys and values.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    pub(super) adapters: StoreLimits,
    engine: EngineConfig,
    context: usize,
}

impl Limits {
    /// Divides memory that the model leaves: adapters get a part; keys and values get the rest, at most as much as all
    /// sequences can use. `beside_model` is false if the limit covers the model as well.
    ///
    /// # Errors
    /// If nothing is left, or the limit is a part of a device that does not report its memory.
    pub(super) fn new(
        arguments: &InferenceArguments,
        default: MemoryLimit,
        pipeline: &Pipeline,
        element_bytes: usize,
        beside_model: bool,
    ) -> anyhow::Result<Self> {
        let config = pipeline.config();
        let device = pipeline.local_devices().next();
        let has = device.and_then(|(device, _)| device_memory(&device));
        let limit = match (arguments.memory_limit.unwrap_or(default), has) {
            (limit, Some(has)) => limit.bytes(has),
            (MemoryLimit::Bytes(bytes), None) => bytes,
            (MemoryLimit::Fraction(_), None) => {
                let failure = Failure::usage("this device does not report its memory");
                return Err(failure
                    .hint("set a size, such as `--memory-limit 8GiB`")
                    .into());
            }
        };
        let weights: u64 = if beside_model {
            0
        } else {
            pipeline.weight_bytes().sum()
        };
        let left = limit.saturating_sub(weights);
        let device_bytes = (left as f64 * ADAPTERS) as u64;
        let block = LayerCache::block_bytes(config, element_bytes) * config.num_hidden_layers;
        let fit = (left - device_bytes) as usize / block.max(1);
        let context = config.max_position_embeddings;
        let most = arguments.max_num_seqs * context.div_ceil(BLOCK_TOKENS);
        if fit == 0 {
            let [limit, weights] = sizes(limit, weights);
            let (message, hint) = if beside_model {
                let message = format!("{limit} are too few to answer with");
                (message, "raise --memory-limit")
            } else {
                let message =
                    format!("the model takes {weights} of {limit}: nothing is left to answer with");
                (message, "raise --memory-limit, or add `--quantization nf4`")
            };
            return Err(Failure::new(Exit::Memory, message).hint(hint).into());
        }
        Ok(Self {
            adapters: StoreLimits {
                device: device_bytes,
                host: HostMemory::installed().map_or(u64::MAX, |bytes| bytes / 2),
            },
            engine: EngineConfig {
                blocks: fit.min(most),
                batch_tokens: arguments.max_num_batched_tokens,
                max_sequences: arguments.max_num_seqs,
            },
            context,
        })
    }

    /// A warning if one sequence of the whole context would not fit.
    pub(super) fn warning(&self) -> Option<String> {
        let (tokens, context) = (self.engine.blocks * BLOCK_TOKENS, self.context);
        (tokens < context).then(|| {
            format!("keys and values of {tokens} tokens fit: longer requests are refused, though the context is {context}")
        })
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let adapters = size(self.adapters.device);
        let tokens = self.engine.blocks * BLOCK_TOKENS;
        write!(
            f,
            "{adapters} for adapters, keys and values of {tokens} tokens"
        )
    }
}
