//! `submit RUN CONFIG` and `clone RUN TASK`: submit tasks to a server.

use loraloom_config::LoadOptions;
use loraloom_server::{Client, Submitted, SubmittedTasks};

use super::config::{complete, refuse_unused};
use crate::{
    arguments::{CloneArguments, SubmitArguments},
    exit::Exit,
    printer::Printer,
};

/// Keys that the server's configuration decides.
const OF_THE_SERVER: [&str; 7] = [
    "device",
    "dtype",
    "gradient_checkpointing",
    "output_dir",
    "pipeline",
    "quantization",
    "scheduler",
];

pub(super) fn submit(arguments: &SubmitArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let reason = "the server sets it";
    refuse_unused(&arguments.overrides, &OF_THE_SERVER, reason)?;
    let client = Client::open(&arguments.directory)?;
    let options = LoadOptions {
        overrides: arguments.overrides.clone(),
        default_model: Some(client.model().to_owned()),
        ..LoadOptions::default()
    };
    let loaded = complete(&arguments.config, &options, printer)?;
    printer.warnings(&loaded.warnings);
    let key = arguments.key.as_deref();
    let (tasks, warnings) = printer.while_busy("reading data", || {
        if arguments.dry_run {
            client.rehearse(&loaded.config, key)
        } else {
            client.submit(&loaded.config, key)
        }
    })?;
    printer.warnings(&warnings);
    if arguments.dry_run {
        printer.note("dry run: nothing is submitted");
    }
    print(tasks, arguments.json, printer)
}

pub(super) fn clone(arguments: &CloneArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let client = Client::open(&arguments.of.directory)?;
    let (tasks, warnings) = client.resubmit(
        &arguments.of.task,
        &arguments.name,
        &arguments.overrides,
        arguments.key.as_deref(),
    )?;
    printer.warnings(&warnings);
    print(tasks, arguments.of.json, printer)
}

fn print(tasks: Vec<Submitted>, json: bool, printer: &Printer) -> anyhow::Result<Exit> {
    if json {
        printer.json(&SubmittedTasks { tasks })?;
        return Ok(Exit::Success);
    }
    for task in tasks {
        let Submitted {
            id,
            name,
            new,
            total_steps,
        } = task;
        let steps = total_steps.map_or_else(String::new, |steps| format!(", {steps} steps"));
        let known = if new { "" } else { " (accepted before)" };
        let id = id.map_or_else(|| "new task".to_owned(), |id| id.to_string());
        printer.data(&format!("{id}  {name}{steps}{known}"))?;
    }
    Ok(Exit::Success)
}
