//! `serve RUN --listen`: answers OpenAI's requests beside the training of the queue.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use loraloom_config::MemoryLimit;
use loraloom_data::Tokenizer;
use loraloom_inference::{
    AdapterStore, InferenceError, Neighbour, ReadFiles, Replace, Service, ServiceError, apart,
    train_behind,
};
use loraloom_server::LoadedServer;
use loraloom_trainer::{Event, LiveAsks, TrainerError, adapter_reader, find_weights};

use super::{
    answering::{Answerer, Entrance, HttpServer, Limits, base_name},
    serve_inference::adapters,
};
use crate::{
    arguments::{InferenceArguments, SourceArguments},
    failure::Failure,
    printer::Printer,
    run_directory,
};

/// Part of the device's memory by default.
const MEMORY: MemoryLimit = MemoryLimit::Fraction(0.1);

/// The answering side of a server that trains.
pub(super) struct Beside {
    directory: PathBuf,
    base: String,
    service: Service,
    http: HttpServer,
    answerer: JoinHandle<Result<(), InferenceError>>,
    /// Training has ended.
    ended: Arc<AtomicBool>,
    live: LiveAsks,
    /// A warning about an adapter with the base model's name was printed.
    has_warned: Cell<bool>,
}

impl Beside {
    /// Begins to answer with the server's weights, and leaves `server` less memory.
    ///
    /// # Errors
    /// If a stage is on a worker, memory does not suffice, or a saved adapter cannot be read.
    pub(super) fn start(
        entrance: Entrance,
        arguments: &InferenceArguments,
        (directory, model): (&Path, &Path),
        server: &mut LoadedServer,
        stop: &Arc<AtomicBool>,
        printer: &Printer,
    ) -> anyhow::Result<Self> {
        let Some(pipeline) = server.run.twin()? else {
            let failure = Failure::usage("`--listen` needs all stages in this process");
            let hint = "answer on another machine with `loraloom serve --inference-only`";
            return Err(failure.hint(hint).into());
        };
        let element_bytes = server.run.element_bytes();
        let limits = Limits::new(arguments, MEMORY, &pipeline, element_bytes, true)?;
        printer.warnings(limits.warning().as_slice());
        server.run.leave(limits.adapters.device);
        let neighbour = Arc::new(Neighbour::new(arguments.inference_share));
        let (asks, live) = LiveAsks::channel(server.news(), Arc::clone(&neighbour));

        let config = pipeline.config().clone();
        let read = adapter_reader(model, &config);
        let base = base_name(arguments, model)?;
        let find = find_weights(directory.to_owned(), read.clone(), Some(asks));
        let store = AdapterStore::new(base.clone(), 0, limits.adapters, read.clone());
        let mut store = store.with_find(find);
        let source = SourceArguments {
            run: Some(directory.to_owned()),
            model: None,
        };
        for (name, directory) in adapters(&source, arguments)? {
            let files = ReadFiles::new(&directory, &read);
            let registered =
                files.and_then(|files| store.register(&name, files, &Replace::Nothing));
            if let Err(error) = registered {
                printer.warning(&cannot_be_asked(&name, &error));
            }
        }
        let (sender, service) = mpsc::channel();
        let engine_limits = limits.clone();
        let answer = move || {
            let (answerer, service) =
                Answerer::new(pipeline, &engine_limits, store, Some(neighbour))?;
            // Caches take their memory before training measures what is left.
            let _ = sender.send(service);
            answerer.answer()
        };
        let answerer = thread::Builder::new().name("answers".to_owned());
        let answerer = answerer.spawn(|| apart(answer))?;
        let Ok(service) = service.recv() else {
            let failed = answerer.join().map(Result::err);
            let failed = failed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            return Err(match failed {
                Some(error) => TrainerError::from(error).into(),
                None => anyhow::anyhow!("the thread that answers has ended"),
            });
        };
        let ended = Arc::new(AtomicBool::new(false));
        let http = HttpServer::start(
            entrance,
            service.clone(),
            Tokenizer::load(model)?,
            &limits,
            Some(server.client.clone()),
            vec![Arc::clone(stop), Arc::clone(&ended)],
            printer,
        )?;
        // Threads inherit the priority: those of answers have started.
        train_behind();
        Ok(Self {
            directory: directory.to_owned(),
            base,
            service,
            http,
            answerer,
            ended,
            live,
            has_warned: Cell::new(false),
        })
    }

    /// The adapters that requests ask training for.
    pub(super) fn live(&self) -> &LiveAsks {
        &self.live
    }

    /// Lets requests use a save.
    pub(super) fn see(&self, event: &Event, printer: &Printer) {
        let Event::Checkpoint { adapter, .. } = event else {
            return;
        };
        if *adapter == self.base && !self.has_warned.replace(true) {
            let name = adapter.clone();
            printer.warning(&cannot_be_asked(adapter, &ServiceError::BaseName { name }));
        }
        for spec in [
            adapter.clone(),
            format!("{adapter}@best"),
            format!("{adapter}@last"),
        ] {
            if let Ok(path) = run_directory::adapter(&self.directory, &spec) {
                self.service.refresh(spec, path);
            }
        }
    }

    /// Completes running answers.
    ///
    /// # Errors
    /// If a thread panicked.
    pub(super) fn finish(self, printer: &Printer) -> anyhow::Result<()> {
        self.ended.store(true, Ordering::Relaxed);
        drop(self.live);
        self.http.finish(printer)?;
        drop(self.service);
        match self.answerer.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => printer.warning(&format!("answering ended before training: {error}")),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok(())
    }
}

fn cannot_be_asked(name: &str, error: &ServiceError) -> String {
    format!("adapter `{name}` cannot be asked: {error}")
}
