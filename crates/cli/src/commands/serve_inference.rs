//! `serve --inference-only`: answers OpenAI's requests over HTTP.

use std::{
    fmt,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use burn::tensor::{DType, Device};
use loraloom_config::MemoryLimit;
use loraloom_data::Tokenizer;
use loraloom_inference::{
    AdapterStore, EngineConfig, ReadFiles, Replace, ServiceConfig, ServiceCore, StoreLimits,
};
use loraloom_model::{BLOCK_TOKENS, Checkpoint, LayerCache, LlamaConfig};
use loraloom_pipeline::{HostMemory, Pipeline, device_memory};
use loraloom_scheduler::{size, sizes};
use loraloom_server::http::{self, HttpLimits, HttpState, Keys};
use loraloom_trainer::{TrainerError, adapter_reader, inference_pipeline, resolve_dtype};

use crate::{
    arguments::{InferenceArguments, ServeArguments, SourceArguments},
    device,
    exit::Exit,
    failure::Failure,
    interrupt,
    printer::Printer,
    run_directory,
};

/// Requests that may wait for each that may run.
const WAITING: usize = 16;
/// Part of the memory beside the model that adapters may take.
const ADAPTERS: f64 = 0.25;
/// Threads that read requests and write answers.
const THREADS: usize = 2;
/// How often the signal to stop is looked for.
const POLL: Duration = Duration::from_millis(50);

pub(super) fn run(arguments: &ServeArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let inference = &arguments.inference;
    let source = SourceArguments {
        run: arguments.directory.clone(),
        model: inference.model.clone(),
    };
    let model = source.model()?;
    let config = source.config(&model, inference.quantization)?;
    let adapters = adapters(&source, inference)?;
    let keys = inference.api_keys.as_deref().map(Keys::load).transpose();
    let keys = keys.map_err(|error| {
        let cause = std::error::Error::source(&error);
        let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
        Failure::new(Exit::Usage, format!("{error}{cause}"))
    })?;
    let listener = TcpListener::bind(inference.listen).map_err(|error| {
        let address = inference.listen;
        Failure::new(Exit::Usage, format!("cannot listen on {address}: {error}"))
    })?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() && keys.is_none() {
        printer.warning(&format!(
            "{address} can be reached from other machines, and requests need no key: add --api-keys FILE"
        ));
    }

    let opened = device::open(inference.device)?;
    printer.warnings(&opened.warnings);
    let stop = interrupt::stop_answering(printer)?;
    let load = || inference_pipeline(&model, &config, inference.dtype, &opened.device);
    let mut pipeline = printer.while_busy("loading the model", load)?;
    let tokenizer = Tokenizer::load(&model)?;
    let dtype = Checkpoint::open(&model)?.dtype();
    let dtype = resolve_dtype(inference.dtype, &opened.device, dtype)?;
    let limits = Limits::new(
        inference,
        &pipeline,
        &config,
        (&opened.device, dtype.into()),
    )?;
    printer.warnings(limits.warning().as_slice());
    let base = match &inference.served_model_name {
        Some(name) => name.clone(),
        None => name_of(&model)?,
    };
    let read = adapter_reader(&model, &config);
    let mut store = AdapterStore::new(base, 0, limits.adapters, read.clone());
    for (name, directory) in &adapters {
        let files = ReadFiles::new(directory, &read);
        let registered = files.and_then(|files| store.register(name, files, &Replace::Nothing));
        registered.map_err(|error| Failure::new(Exit::Data, error.to_string()))?;
    }
    let service_config = ServiceConfig {
        engine: limits.engine,
        max_waiting: WAITING * inference.max_num_seqs,
    };
    let (mut core, service) = ServiceCore::new(&pipeline, service_config, store);
    let context = config.max_position_embeddings;
    let state = HttpState::new(service, tokenizer, context, keys, HttpLimits::default());

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let server = runtime.spawn(http::serve(listener, state, stopped(stop)));
    printer.note(&limits.to_string());
    printer.note(&format!("listening on http://{address}"));
    // Ends when the server has dropped its handle.
    while core.turn(&mut pipeline).map_err(TrainerError::from)? {}
    let cut_off = runtime.block_on(server)?;
    if cut_off > 0 {
        printer.warning(&format!("{cut_off} connections were cut off"));
    }
    Ok(Exit::Success)
}

async fn stopped(stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(POLL).await;
    }
}

/// Memory of adapters, and of keys and values.
#[derive(Debug)]
struct Limits {
    adapters: StoreLimits,
    engine: EngineConfig,
    context: usize,
}

impl Limits {
    /// Divides the memory that the model leaves: adapters get a part; keys and values get the rest, at most as much as all
    /// sequences can use.
    fn new(
        inference: &InferenceArguments,
        pipeline: &Pipeline,
        config: &LlamaConfig,
        (device, dtype): (&Device, DType),
    ) -> anyhow::Result<Self> {
        let limit = match (inference.memory_limit, device_memory(device)) {
            (limit, Some(has)) => limit.bytes(has),
            (MemoryLimit::Bytes(bytes), None) => bytes,
            (MemoryLimit::Fraction(_), None) => {
                let failure = Failure::usage("this device does not report its memory");
                return Err(failure
                    .hint("set a size, such as `--memory-limit 8GiB`")
                    .into());
            }
        };
        let weights: u64 = pipeline.weight_bytes().sum();
        let left = limit.saturating_sub(weights);
        let device_bytes = (left as f64 * ADAPTERS) as u64;
        let block = LayerCache::block_bytes(config, dtype) * config.num_hidden_layers;
        let fit = (left - device_bytes) as usize / block.max(1);
        let context = config.max_position_embeddings;
        let most = inference.max_num_seqs * context.div_ceil(BLOCK_TOKENS);
        if fit == 0 {
            let [limit, weights] = sizes(limit, weights);
            let message =
                format!("the model takes {weights} of {limit}: nothing is left to answer with");
            let hint = "raise --memory-limit, or add `--quantization nf4`";
            return Err(Failure::new(Exit::Memory, message).hint(hint).into());
        }
        Ok(Self {
            adapters: StoreLimits {
                device: device_bytes,
                host: HostMemory::installed().map_or(u64::MAX, |bytes| bytes / 2),
            },
            engine: EngineConfig {
                blocks: fit.min(most),
                batch_tokens: inference.max_num_batched_tokens,
                max_sequences: inference.max_num_seqs,
            },
            context,
        })
    }

    /// A warning if one sequence of the whole context would not fit.
    fn warning(&self) -> Option<String> {
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

/// Names and directories: those of the run, and those that are named.
fn adapters(
    source: &SourceArguments,
    inference: &InferenceArguments,
) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut adapters = Vec::new();
    if let Some(run) = &source.run {
        for name in run_directory::adapters(run) {
            for spec in [name.clone(), format!("{name}@best"), format!("{name}@last")] {
                match source.adapter(&spec) {
                    Ok(directory) => adapters.push((spec, directory)),
                    // It was never evaluated.
                    Err(_) if spec != name => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    adapters.extend(inference.adapters.iter().cloned());
    Ok(adapters)
}

/// The last part of a directory's path.
fn name_of(model: &Path) -> anyhow::Result<String> {
    let path = model.canonicalize()?;
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(name.to_string_lossy().into_owned())
}
