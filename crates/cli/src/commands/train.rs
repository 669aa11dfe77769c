//! `train CONFIG`: trains every adapter.

use std::{collections::BTreeSet, error::Error, path::Path};

use loraloom_config::{LoadOptions, RunConfig};
use loraloom_trainer::{
    CONFIG_FILE, Event, Run, RunReport, SavedRun, Signals, TrainerError, quoted,
};

use super::{config, report, stages};
#[cfg(unix)]
use crate::dashboard::LiveDashboard;
use crate::{
    arguments::TrainArguments,
    device,
    event_pipe::EventPipe,
    exit::Exit,
    failure::{self, Failure},
    interrupt,
    printer::Printer,
    progress::Progress,
    run_directory, summary,
};

pub(super) fn run(arguments: TrainArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let save = interrupt::save()?;
    // True if the configuration is the run's own, without overrides.
    let named = &arguments.config;
    let own = arguments.resume && named.config.is_dir() && named.overrides.is_empty();
    let config = configuration(&arguments, printer)?;
    let saved = if arguments.resume {
        run_directory::refuse_served(&config.output_dir)?;
        let saved = SavedRun::claim(&config.output_dir)?;
        match saved.check(&config) {
            Err(error @ TrainerError::ConfigChanged { .. }) if own => {
                return Err(edited(&config.output_dir, &error).into());
            }
            checked => checked?,
        }
        if let Some(mut report) = saved.report(&config) {
            let lost = saved.lost_adapters();
            let warnings = saved.warnings().iter();
            let warnings = warnings.filter(|warning| !lost.contains(warning));
            warnings.for_each(|warning| printer.warning(warning));
            let run = config.output_dir.display();
            printer.note(&format!(
                "the run in {run} is complete: nothing is left to train"
            ));
            show_only(&mut report, arguments.samples);
            print(&report, &arguments, false, printer)?;
            failure::report_adapters(printer, &report, &BTreeSet::new());
            for lost in &lost {
                printer.error(lost);
            }
            return Ok(if lost.is_empty() {
                failure::exit_of_run(&report)
            } else {
                Exit::Data
            });
        }
        Some(saved)
    } else {
        // Checked before weights are read; the lock of the run directory decides between two runs.
        run_directory::refuse_unusable(&config.output_dir)?;
        None
    };
    let places = stages::open(&config, printer)?;
    let output_dir = config.output_dir.clone();
    let start = |command: &String| EventPipe::start(command, &output_dir);
    let pipe = arguments.events_to.as_ref().map(start).transpose()?;

    let mut run = printer.while_busy("reading data and weights", || match saved {
        Some(saved) => Run::resume(config, &places, saved),
        None => Run::prepare(config, &places),
    })?;
    for line in summary::datasets(run.datasets()) {
        printer.note(&line);
    }
    let datasets = run.datasets();
    let validated = datasets.iter().find(|rows| rows.validation.is_some());
    let dataset = validated.or(datasets.first());
    let dataset = dataset.map(|rows| rows.dataset.clone());
    if let Some(rows) = arguments.samples {
        run.answer(rows);
    }
    let stop = interrupt::stop(printer)?;
    let signals = Signals {
        save: &save,
        standby: Some(&stop.standby),
        ..Signals::from(&*stop.asked)
    };
    #[cfg(unix)]
    let dashboard = arguments
        .tui
        .then(|| LiveDashboard::start(&output_dir, printer))
        .flatten();
    #[cfg(unix)]
    let printer = &printer.beside_dashboard(dashboard.is_some());
    let mut progress = Progress::new(printer, &run.steps());
    let directory = quoted(&output_dir);
    let way_back = format!("loraloom train --resume {directory}");
    let trained = run.train(signals, &mut |event| {
        if matches!(event, Event::RunCheckpoint { .. } | Event::Resume { .. }) {
            printer.set_way_back(way_back.clone());
        }
        progress.show(event);
    });
    let told = progress.finish();
    #[cfg(unix)]
    drop(dashboard);
    if let Some(pipe) = pipe {
        pipe.finish(printer);
    }
    let mut trained = trained?;
    show_only(&mut trained, arguments.samples);
    report::write_beside(&output_dir, printer);

    print(&trained, &arguments, arguments.samples.is_none(), printer)?;
    failure::report_adapters(printer, &trained, &told);
    if trained.interrupted {
        printer.hint_way_back();
    } else if !arguments.json {
        say_what_next(&trained, &directory, dataset.as_deref(), printer);
    }
    Ok(failure::exit_of_run(&trained))
}

/// Suggests commands for the trained adapters, with one of the datasets.
fn say_what_next(trained: &RunReport, directory: &str, dataset: Option<&str>, printer: &Printer) {
    if trained
        .adapters
        .iter()
        .all(|adapter| adapter.directory.is_none())
    {
        return;
    }
    printer.note("");
    let options = format!("--run {directory} --compare-base");
    if let Some(dataset) = dataset {
        let dataset = quoted(Path::new(dataset));
        printer.note(&format!("try: loraloom eval {options} --dataset {dataset}"));
    }
    printer.note(&format!("try: loraloom generate {options} PROMPT"));
}

/// The named configuration, or the one in a named run directory.
fn configuration(arguments: &TrainArguments, printer: &Printer) -> anyhow::Result<RunConfig> {
    let mut named = arguments.config.clone();
    let mut output_dir = arguments.output_dir.clone();
    if arguments.resume && !named.config.exists() && named.config.extension().is_none() {
        let message = format!("there is no run in `{}`", named.config.display());
        let hint = "RUN is the directory of a started run, by default `runs/` and the name of its \
                    configuration";
        return Err(Failure::usage(message).hint(hint).into());
    }
    if arguments.resume && named.config.is_dir() {
        if output_dir.is_some() {
            let message = "both `--output-dir` and a run directory are given";
            let hint = "give only the run directory: `loraloom train --resume RUN`";
            return Err(Failure::usage(message).hint(hint).into());
        }
        let directory = named.config;
        run_directory::refuse_served(&directory)?;
        named.config = directory.join(CONFIG_FILE);
        let options = LoadOptions {
            output_dir: Some(directory.clone()),
            ..LoadOptions::default()
        };
        if let Err(error) = RunConfig::load_with(&named.config, &options) {
            // If there is no run either, this is the error.
            SavedRun::newest(&directory)?;
            return Err(edited(&directory, &error).into());
        }
        output_dir = Some(directory);
    }
    let options = LoadOptions {
        output_dir,
        ..config::options(&named)
    };
    let mut config = config::load(&options, &named, printer)?;
    if let Some(device) = arguments.device {
        device::replace(&mut config, device)?;
    }
    Ok(config)
}

/// The error about an edited configuration of a run.
fn edited(directory: &Path, error: &(dyn Error + 'static)) -> Failure {
    let what = if directory.join(CONFIG_FILE).exists() {
        "has changed since the run wrote it"
    } else {
        "is missing"
    };
    Failure::usage(loraloom_server::with_causes(error)).hint(format!(
        "{CONFIG_FILE} {what}: restore it, or give the original configuration, `loraloom train CONFIG \
         --resume --output-dir {}`",
        quoted(directory)
    ))
}

/// Keeps the requested number of answers per adapter in a report, which may have more from an earlier part of the
/// run.
fn show_only(report: &mut RunReport, samples: Option<usize>) {
    for adapter in &mut report.adapters {
        adapter.samples.truncate(samples.unwrap_or(usize::MAX));
    }
}

/// Prints a report. `some` is true if only some adapters answered prompts.
fn print(
    report: &RunReport,
    arguments: &TrainArguments,
    some: bool,
    printer: &Printer,
) -> anyhow::Result<()> {
    failure::unless_unread(print_all(report, arguments, some, printer))?;
    Ok(())
}

fn print_all(
    report: &RunReport,
    arguments: &TrainArguments,
    some: bool,
    printer: &Printer,
) -> anyhow::Result<()> {
    if arguments.json {
        return printer.json(report);
    }
    printer.data(&summary::table(report))?;
    for sweep in &report.sweeps {
        printer.data(&format!("\n{}", summary::leaderboard(sweep)))?;
    }
    let samples = summary::samples(report, some);
    if !samples.is_empty() {
        printer.data(&format!("\n{samples}"))?;
    }
    Ok(())
}
