//! `report RUN`: writes the page of a run, and its numbers for other tools.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use loraloom_report::RunHistory;
use loraloom_server::with_causes;
use loraloom_trainer::{EVENTS_FILE, quoted};

use crate::{
    arguments::ReportArguments,
    exit::Exit,
    failure::{self, Failure},
    history::read_history,
    printer::Printer,
    run_directory,
};

/// The page in a run directory.
const PAGE: &str = "report.html";
/// Interval at which a watched run is read.
const EVERY: Duration = Duration::from_secs(10);

pub(super) fn run(arguments: &ReportArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let directory = &arguments.directory;
    let events = directory.join(EVENTS_FILE);
    let length = || fs::metadata(&events).map_or(0, |file| file.len());
    let others = arguments.csv.is_some() || arguments.tensorboard.is_some() || arguments.json;
    let beside = (!others).then(|| directory.join(PAGE));
    let page = arguments.page.clone().or(beside);
    for path in page.iter().chain(&arguments.csv) {
        run_directory::refuse_own_file(path, directory)?;
    }
    if arguments.json && arguments.csv.as_deref() == Some(Path::new("-")) {
        return Err(Failure::usage("`--csv -` and --json both print to stdout").into());
    }
    if page.is_some() && page == arguments.csv {
        return Err(Failure::usage("the page and the table are the same file").into());
    }
    let mut warned = false;
    loop {
        let before = length();
        let history = printer.while_busy("reading events", || read_history(directory))?;
        if !std::mem::replace(&mut warned, true) {
            warn_of_log(&history, &events, printer);
        }
        write(&history, page.as_ref(), arguments, printer)?;
        if !arguments.watch || history.has_ended() {
            return Ok(Exit::Success);
        }
        while length() == before {
            thread::sleep(EVERY);
        }
    }
}

fn warn_of_log(history: &RunHistory, events: &Path, printer: &Printer) {
    let events = events.display();
    match history.lines() {
        (0, _) => printer.warning(&format!("`{events}` is empty: the run has not started")),
        (_, 0) => {}
        (all, unread) => printer.warning(&format!(
            "{unread} of {all} lines of `{events}` could not be read"
        )),
    }
}

fn write(
    history: &RunHistory,
    page: Option<&PathBuf>,
    arguments: &ReportArguments,
    printer: &Printer,
) -> anyhow::Result<()> {
    if arguments.json {
        printer.data(&history.json()?)?;
    }
    if let Some(path) = &arguments.csv {
        if path == Path::new("-") {
            let mut table = Vec::new();
            history.write_csv(&mut table)?;
            printer.data(&String::from_utf8_lossy(&table))?;
        } else {
            let written = File::create(path).and_then(|file| {
                let mut file = BufWriter::new(file);
                history.write_csv(&mut file)?;
                file.flush()
            });
            failure::written(path, written)?;
            printer.note(&format!("table   {}", path.display()));
        }
    }
    if let Some(path) = &arguments.tensorboard {
        history.write_tensorboard(path)?;
        printer.note(&format!(
            "events  {}; tensorboard --logdir {}",
            path.display(),
            quoted(path)
        ));
    }
    if let Some(path) = page {
        failure::written(path, write_whole(path, &history.page()?))?;
        printer.note(&format!("report  {}", path.display()));
    }
    Ok(())
}

/// Replaces a file with a complete text, so that a full disk keeps the older page. Special files are written
/// directly.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    if path.exists() && !path.is_file() {
        return fs::write(path, text);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // The first error is the more informative one.
        let _ = fs::remove_file(&new);
    }
    written
}

/// Writes the page of a run that has just ended into its directory. An error does not fail the run.
pub(super) fn write_beside(directory: &Path, printer: &Printer) {
    let path = directory.join(PAGE);
    let written = RunHistory::read(directory).map_err(anyhow::Error::from);
    let written = written.and_then(|history| Ok(write_whole(&path, &history.page()?)?));
    match written {
        Ok(()) => printer.note(&format!("report  {}", path.display())),
        Err(error) => printer.warning(&format!(
            "`{}` could not be written: {}",
            path.display(),
            with_causes(error.as_ref())
        )),
    }
}
