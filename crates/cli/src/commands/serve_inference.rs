//! `serve --inference-only`: answers OpenAI's requests over HTTP.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use burn::tensor::DType;
use loraloom_config::MemoryLimit;
use loraloom_data::Tokenizer;
use loraloom_inference::{AdapterStore, ReadFiles, Replace, ServiceError};
use loraloom_model::{Checkpoint, LlamaConfig};
use loraloom_trainer::{
    TrainerError, adapter_reader, find_weights, inference_pipeline, load_adapter, resolve_dtype,
};

use super::{
    answering::{Answerer, Entrance, HttpServer, Limits, base_name},
    source::say_another_base,
};
use crate::{
    arguments::{InferenceArguments, ServeArguments, SourceArguments},
    device,
    exit::Exit,
    failure::Failure,
    interrupt,
    printer::Printer,
    run_directory,
};

/// Where requests arrive by default, as vLLM's.
const ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8000);
/// Part of the device's memory by default.
const MEMORY: MemoryLimit = MemoryLimit::Fraction(0.9);

pub(super) fn run(arguments: &ServeArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let inference = &arguments.inference;
    let source = SourceArguments {
        run: arguments.directory.clone(),
        model: inference.model.clone(),
    };
    let model = source.model()?;
    let config = source.config(&model, inference.quantization)?;
    let adapters = adapters(&source, inference)?;
    warn_of_unsaved(&source, printer)?;
    let entrance = Entrance::open(inference.listen.unwrap_or(ADDRESS), inference, printer)?;

    let opened = device::open(inference.device)?;
    printer.warnings(&opened.warnings);
    let stop = interrupt::stop_answering(printer)?;
    // SIGUSR1 saves the tasks of a server that trains. Without a handler it would end this one.
    let _nothing_to_save = interrupt::save()?;
    printer.while_busy("reading adapters", || {
        warn_of_another_base(&model, &config, &inference.adapters, printer)
    })?;
    let load = || inference_pipeline(&model, &config, inference.dtype, &opened.device);
    let pipeline = printer.while_busy("loading the model", load)?;
    let tokenizer = Tokenizer::load(&model)?;
    let dtype = Checkpoint::open(&model)?.dtype();
    let dtype = DType::from(resolve_dtype(inference.dtype, &opened.device, dtype)?);
    let limits = Limits::new(inference, MEMORY, &pipeline, dtype.size(), false)?;
    printer.warnings(limits.warning().as_slice());
    let read = adapter_reader(&model, &config);
    let base = base_name(inference, &model)?;
    let mut store = AdapterStore::new(base, 0, limits.adapters, read.clone());
    if let Some(run) = &source.run {
        store = store.with_find(find_weights(run.clone(), read.clone(), None));
    }
    for (name, directory) in &adapters {
        let files = ReadFiles::new(directory, &read);
        let registered = files.and_then(|files| store.register(name, files, &Replace::Nothing));
        registered.map_err(|error| {
            let failure = |exit| Failure::new(exit, error.to_string());
            match error {
                ServiceError::BaseName { .. } => {
                    failure(Exit::Data).hint("name the model otherwise with --served-model-name")
                }
                ServiceError::AdapterTooLarge { .. } => {
                    failure(Exit::Memory).hint("raise --memory-limit")
                }
                _ => failure(Exit::Data),
            }
        })?;
    }
    let (answerer, service) =
        Answerer::new(pipeline, &limits, store, None).map_err(TrainerError::from)?;
    let stop = vec![stop];
    let server = HttpServer::start(entrance, service, tokenizer, &limits, None, stop, printer)?;
    answerer.answer().map_err(TrainerError::from)?;
    server.finish(printer)?;
    Ok(Exit::Success)
}

/// Warns of a run's adapters that no request can name.
fn warn_of_unsaved(source: &SourceArguments, printer: &Printer) -> anyhow::Result<()> {
    let Some(run) = &source.run else {
        return Ok(());
    };
    let saved = run_directory::adapters(run);
    let configured = run_directory::config(run)?.adapters;
    let unsaved = configured
        .iter()
        .filter(|adapter| !saved.contains(&adapter.name));
    let unsaved: Vec<String> = unsaved
        .map(|adapter| format!("`{}`", adapter.name))
        .collect();
    let run = run.display();
    if !unsaved.is_empty() {
        printer.warning(&format!("`{run}` has no save of {}", unsaved.join(", ")));
    } else if saved.is_empty() {
        printer.warning(&format!(
            "`{run}` has no saved adapter: only the base model answers"
        ));
    }
    Ok(())
}

/// Warns of adapters that were trained over another model.
fn warn_of_another_base(
    model: &Path,
    config: &LlamaConfig,
    adapters: &[(String, PathBuf)],
    printer: &Printer,
) -> anyhow::Result<()> {
    let mut digest = None;
    for (_, directory) in adapters {
        let Some(base) = load_adapter(directory, Some(config))?.base else {
            continue;
        };
        let digest = match &mut digest {
            Some(digest) => digest,
            None => digest.insert(Checkpoint::open(model)?.digest(config)?),
        };
        if base != *digest {
            say_another_base(directory, model, printer);
        }
    }
    Ok(())
}

/// Names and directories: those of the run, and those that are named.
pub(super) fn adapters(
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
