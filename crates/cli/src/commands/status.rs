//! `status RUN`: the tasks of a server and their progress.

use std::{thread, time::Duration};

use loraloom_scheduler::TaskState;
use loraloom_server::{Client, Status, TaskStatus};

use crate::{
    arguments::StatusArguments,
    exit::Exit,
    frame,
    printer::{self, Printer},
    summary,
    table::{aligned, or_dash},
};

/// Interval at which a watched queue is polled.
const EVERY: Duration = Duration::from_millis(500);

/// Moves the cursor to the top left and clears the screen.
const ANEW: &str = "\x1b[H\x1b[2J";

pub(super) fn run(arguments: &StatusArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let client = Client::open(&arguments.directory)?;
    let mut shown = None;
    loop {
        let mut status = client.status()?;
        let ended = !status.tasks.iter().any(is_live);
        if arguments.live {
            status.tasks.retain(is_live);
        }
        if shown.as_ref() != Some(&status) {
            match (arguments.json, arguments.watch) {
                (true, true) => printer.data(&serde_json::to_string(&status)?)?,
                (true, false) => printer.json(&status)?,
                (false, true) if printer::is_screen() => {
                    printer.data(&format!("{ANEW}{}", text(&status)))?;
                }
                (false, _) => printer.data(&text(&status))?,
            }
            shown = Some(status);
        }
        if !arguments.watch || ended {
            return Ok(Exit::Success);
        }
        thread::sleep(EVERY);
    }
}

fn is_live(task: &TaskStatus) -> bool {
    !task.state.is_final()
}

fn text(status: &Status) -> String {
    let server = match (status.served, status.pid) {
        (true, Some(pid)) => format!("served by process {pid}"),
        (true, None) => "served".to_owned(),
        (false, _) => "no server runs".to_owned(),
    };
    let heading = [
        "task",
        "<name",
        "<state",
        "step",
        "left",
        "loss",
        "best eval",
        "priority",
        "<tenant",
        "<reason",
    ];
    let row = |task| row(task, status.served);
    let rows: Vec<[String; 10]> = status.tasks.iter().map(row).collect();
    let mut text = format!("{server}\n{}", aligned(heading, &rows));
    for sweep in &status.sweeps {
        text.push('\n');
        text.push_str(&summary::leaderboard(sweep));
    }
    text
}

fn row(task: &TaskStatus, served: bool) -> [String; 10] {
    let total = task.total_steps.map(|total| total.to_string());
    // It keeps its place and continues with the next server.
    let interrupted = task.state == TaskState::Running && !served;
    let state = match &task.requested {
        Some(request) => format!("{}, to {request}", task.state),
        None if interrupted => "interrupted".to_owned(),
        None => task.state.to_string(),
    };
    [
        task.id.0.to_string(),
        task.name.clone(),
        state,
        format!("{}/{}", task.step, total.as_deref().unwrap_or("?")),
        left(task.seconds_left),
        loss(task.last_loss),
        loss(task.best_eval_loss),
        task.priority.to_string(),
        task.tenant.clone(),
        if interrupted {
            "no server runs".to_owned()
        } else {
            task.reason.clone()
        },
    ]
}

fn left(seconds: Option<f64>) -> String {
    let left = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    or_dash(left.map(frame::time))
}

fn loss(loss: Option<f64>) -> String {
    or_dash(loss.map(|loss| format!("{loss:.4}")))
}

#[cfg(test)]
mod tests {
    use loraloom_scheduler::{TaskId, TaskState};
    use loraloom_server::TaskStatus;

    use super::row;

    #[test]
    fn nothing_runs_without_a_server() {
        let mut task = TaskStatus {
            id: TaskId(1),
            name: "a".to_owned(),
            state: TaskState::Running,
            requested: None,
            step: 3,
            saved_step: 2,
            total_steps: Some(9),
            seconds_left: None,
            last_loss: None,
            best_eval_loss: None,
            priority: 0,
            tenant: "default".to_owned(),
            sweep: None,
            reason: "trains".to_owned(),
        };
        let stands = |task: &TaskStatus, served| {
            let [_, _, state, .., reason] = row(task, served);
            (state, reason)
        };
        let said = |state: &str, reason: &str| (state.to_owned(), reason.to_owned());
        assert_eq!(stands(&task, true), said("running", "trains"));
        assert_eq!(stands(&task, false), said("interrupted", "no server runs"));
        task.state = TaskState::Paused;
        assert_eq!(stands(&task, false), said("paused", "trains"));
    }
}
