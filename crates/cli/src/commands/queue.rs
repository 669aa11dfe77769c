//! `pause`, `resume`, `cancel` and `explain`: one task of a server.

use loraloom_server::{
    AskedTask, Client, ExplainedTask,
    queue::{Answer, QueuedTask, Request},
};

use crate::{arguments::TaskArguments, exit::Exit, printer::Printer};

pub(super) fn ask(
    arguments: &TaskArguments,
    request: Request,
    printer: &Printer,
) -> anyhow::Result<Exit> {
    let client = Client::open(&arguments.directory)?;
    let (task, answer) = client.ask(&arguments.task, request)?;
    if arguments.json {
        printer.json(&AskedTask::from(task))?;
        return Ok(Exit::Success);
    }
    let QueuedTask { name, state, .. } = task;
    let stands = state.predicate();
    printer.data(&match answer {
        Answer::Waits => format!("{name}: the server will {request} it after this step"),
        Answer::CarriedOut => format!("{name} {stands}"),
        Answer::Withdrew => format!("{name}: the earlier request is withdrawn; it {stands}"),
        Answer::Already => format!("{name} {stands} already"),
    })?;
    Ok(Exit::Success)
}

pub(super) fn explain(arguments: &TaskArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let client = Client::open(&arguments.directory)?;
    let (task, events) = client.history(&arguments.task)?;
    if arguments.json {
        printer.json(&ExplainedTask::new(task, events))?;
        return Ok(Exit::Success);
    }
    let steps = task.total_steps.map(|total| format!(" of {total}"));
    let steps = steps.unwrap_or_default();
    printer.data(&format!(
        "{} {} at step {}{steps}: {}",
        task.name,
        task.state.predicate(),
        task.step,
        task.why()
    ))?;
    for event in events {
        printer.data(&format!("  {}: {}", event.kind, event.reason))?;
    }
    Ok(Exit::Success)
}
