//! Loads configurations, and downloads their models and datasets.

use loraloom_config::{Absent, ConfigError, LoadOptions, OnHub};
use loraloom_hub::{Cache, Downloaded, Hub};
use loraloom_server::ServerError;

use crate::{exit::Exit, failure::Failure, printer::Printer};

const MEGABYTE: f64 = 1e6;

/// Loads a configuration, and again after each download of a model or dataset that the Hugging Face cache lacks.
///
/// # Errors
/// Those of `load`; the missing files if `HF_HUB_OFFLINE` is set or the download did not bring them; errors of a
/// download.
pub(crate) fn with_downloads<T>(
    options: &LoadOptions,
    printer: &Printer,
    load: impl Fn() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut tried = None;
    loop {
        let error = match load() {
            Ok(loaded) => return Ok(loaded),
            Err(error) => error,
        };
        let Some((absent, on_hub)) = absent(&error) else {
            return Err(error);
        };
        let cache = options.hub_cache.clone().map(|folder| Cache { folder });
        let (Some(hub), Some(cache)) =
            (Hub::of_environment(), cache.or_else(Cache::of_environment))
        else {
            return Err(error);
        };
        if tried.as_ref() == Some(on_hub) {
            return Err(error);
        }
        download(&hub, &cache, absent, on_hub, printer)?;
        tried = Some(on_hub.clone());
    }
}

/// Missing files of an error that may be on the Hub.
fn absent(error: &anyhow::Error) -> Option<(&Absent, &OnHub)> {
    let config = error.chain().find_map(|cause| {
        let of_server = match cause.downcast_ref() {
            Some(ServerError::Config(error)) => Some(error),
            _ => None,
        };
        cause.downcast_ref().or(of_server)
    });
    match config? {
        ConfigError::Absent(absent) => Some((absent, absent.on_hub.as_ref()?)),
        _ => None,
    }
}

fn download(
    hub: &Hub,
    cache: &Cache,
    absent: &Absent,
    on_hub: &OnHub,
    printer: &Printer,
) -> Result<(), Failure> {
    let repository = on_hub.repository();
    printer.note(&format!(
        "downloads {} `{repository}` to `{cache}`",
        repository.kind.singular()
    ));
    let mut of_file = None;
    let mut report = |at: Downloaded<'_>| {
        let is_new = of_file.as_ref().is_none_or(|(file, _)| file != at.file);
        if is_new {
            if let Some((_, Some(bar))) = of_file.take() {
                let bar: indicatif::ProgressBar = bar;
                bar.finish_and_clear();
            }
            printer.note(&format!(
                "  {}: {:.1} MB",
                at.file,
                at.total as f64 / MEGABYTE
            ));
            let bar = printer.bar("MB", (at.total as f64 / MEGABYTE).ceil() as usize);
            of_file = Some((at.file.to_owned(), bar));
        }
        if let Some((_, Some(bar))) = &of_file {
            bar.set_position(at.bytes / MEGABYTE as u64);
        }
    };
    let done = hub.download(
        cache,
        repository,
        &|file| on_hub.is_wanted(file),
        &mut report,
    );
    if let Some((_, Some(bar))) = of_file {
        bar.finish_and_clear();
    }
    done.map(drop).map_err(|error| {
        let failure = Failure::new(Exit::Data, format!("{absent}; {error}"));
        failure.hint(error.hint().unwrap_or(&absent.hint))
    })
}
