//! `serve RUN`: trains submitted tasks.

use std::path::Path;

use loraloom_config::LoadOptions;
use loraloom_inference::apart;
use loraloom_scheduler::TaskState;
use loraloom_server::{Client, Server, configuration};
use loraloom_trainer::{Event, Signals, quoted};

use super::{
    answering::Entrance, config::refuse_unused, serve_beside::Beside, serve_inference, stages,
};
#[cfg(unix)]
use crate::dashboard::LiveDashboard;
use crate::{
    arguments::ServeArguments, event_pipe::EventPipe, exit::Exit, failure, hub, interrupt,
    printer::Printer, progress::Progress,
};

pub(super) fn run(arguments: &ServeArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let directory = match &arguments.directory {
        Some(directory) if !arguments.inference.inference_only => directory,
        _ => return apart(|| serve_inference::run(arguments, printer)),
    };
    let inference = &arguments.inference;
    let open = |address| Entrance::open(address, inference, printer);
    let entrance = inference.listen.map(open).transpose()?;
    let reason = "a server writes to RUN";
    refuse_unused(&arguments.overrides, &["output_dir"], reason)?;
    let save = interrupt::save()?;
    let options = LoadOptions {
        overrides: arguments.overrides.clone(),
        ..LoadOptions::default()
    };
    let file = arguments.config.as_deref();
    let (config, warnings) = hub::with_downloads(&options, printer, || {
        Ok(configuration(directory, file, &options)?)
    })?;
    printer.warnings(&warnings);
    let adapters = config.adapters.len();
    let server = Server::start(directory, config)?;
    match (server.submitted, adapters) {
        (0, 0) => {}
        (0, _) => printer.note(&format!(
            "the queue already exists: submit the adapters of the configuration with `loraloom submit \
             {} {}`",
            quoted(directory),
            file.map_or_else(|| "CONFIG".to_owned(), quoted)
        )),
        (submitted, _) => printer.note(&format!("{submitted} tasks submitted")),
    }
    let behind = server.recovered.iter();
    for task in behind.filter(|task| task.from_step > task.to_step) {
        printer.note(&format!(
            "{} continues from step {}, its last save; it was at step {}",
            task.id, task.to_step, task.from_step
        ));
    }
    let places = stages::open(&server.config, printer)?;
    let stop = interrupt::stop(printer)?;
    let signals = Signals {
        save: &save,
        standby: Some(&stop.standby),
        ..Signals::from(&*stop.asked)
    };
    #[cfg(unix)]
    let dashboard = arguments
        .tui
        .then(|| LiveDashboard::start(directory, printer))
        .flatten();
    #[cfg(unix)]
    let printer = &printer.beside_dashboard(dashboard.is_some());
    let mut progress = Progress::new(printer, &[]);
    let start = |command: &String| EventPipe::start(command, directory);
    let pipe = arguments.events_to.as_ref().map(start).transpose()?;
    let drain = arguments.drain;
    let model = server.config.model.clone();
    let mut server = server.load(&places)?;
    let start = |entrance| {
        let places = (directory.as_path(), model.as_path());
        Beside::start(
            entrance,
            inference,
            places,
            &mut server,
            &stop.asked,
            printer,
        )
    };
    let beside = entrance.map(start).transpose()?;
    let live = beside.as_ref().map(Beside::live);
    let report = server.train(drain, signals, live, &mut |event| {
        if let Some(beside) = &beside {
            beside.see(event, printer);
        }
        // Before it the directory may not have the configuration, which clients read.
        if matches!(event, Event::RunStart { .. } | Event::Resume { .. }) {
            printer.note(&format!("serves {}", directory.display()));
        }
        progress.show(event);
    });
    let told = progress.finish();
    if let Some(beside) = beside {
        beside.finish(printer)?;
    }
    #[cfg(unix)]
    drop(dashboard);
    if let Some(pipe) = pipe {
        pipe.finish(printer);
    }
    let report = report?;
    failure::report_adapters(printer, &report, &told);
    if !report.interrupted {
        say_paused(directory, printer);
    }
    Ok(if report.interrupted || arguments.drain {
        failure::exit_of_run(&report)
    } else {
        Exit::Success
    })
}

/// Names the paused tasks of a server that has trained all others.
fn say_paused(directory: &Path, printer: &Printer) {
    let status = Client::open(directory).and_then(|client| client.status());
    // Training has succeeded, so an unreadable queue is no failure here.
    let tasks = status.map(|status| status.tasks).unwrap_or_default();
    for task in tasks.iter().filter(|task| task.state == TaskState::Paused) {
        let (run, id, name) = (quoted(directory), task.id.0, &task.name);
        printer.note(&format!(
            "{name} is paused: resume it with `loraloom resume {run} {id}`, and serve again"
        ));
    }
}
