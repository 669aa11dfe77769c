//! `pause`, `resume`, `cancel` and `explain`: one task of a server.

use loraloom_scheduler::{TaskId, TaskState};
use loraloom_server::{
    Client,
    queue::{Answer, HistoryEntry, QueuedTask, Request},
};
use serde::Serialize;

use crate::{arguments::TaskArguments, exit::Exit, printer::Printer};

#[derive(Serialize)]
struct RequestOutput {
    id: TaskId,
    name: String,
    state: TaskState,
    requested: Option<String>,
}

#[derive(Serialize)]
struct Explained {
    id: TaskId,
    name: String,
    state: TaskState,
    reason: String,
    explanation: String,
    events: Vec<Happened>,
}

#[derive(Serialize)]
struct Happened {
    event: String,
    reason: String,
}

pub(super) fn ask(
    arguments: &TaskArguments,
    request: Request,
    printer: &Printer,
) -> anyhow::Result<Exit> {
    let client = Client::open(&arguments.directory)?;
    let (task, answer) = client.ask(&arguments.task, request)?;
    if arguments.json {
        printer.json(&RequestOutput {
            id: task.id,
            name: task.name,
            state: task.state,
            requested: task.requested.map(|request| request.to_string()),
        })?;
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
        let happened = |event: HistoryEntry| Happened {
            event: event.kind.to_string(),
            reason: event.reason,
        };
        printer.json(&Explained {
            id: task.id,
            name: task.name,
            state: task.state,
            reason: task.reason,
            explanation: task.explanation,
            events: events.into_iter().map(happened).collect(),
        })?;
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
