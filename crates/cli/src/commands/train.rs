//! `train CONFIG`: every adapter to its end.

use loraloom_config::{LoadOptions, RunConfig, WorkerAddress};
use loraloom_trainer::{Outcome, Run, RunReport, SavedRun, StagePlace};

use super::config;
use crate::{
    arguments::TrainArguments,
    device::{self, OpenedStage},
    exit::Exit,
    failure::Failure,
    interrupt,
    printer::Printer,
    progress::Progress,
    run_directory, summary,
};

pub(super) fn run(arguments: TrainArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let config = configuration(&arguments, printer)?;
    let saved = if arguments.resume {
        let saved = SavedRun::claim(&config.output_dir)?;
        saved.check(&config)?;
        if let Some(report) = saved.report(&config) {
            printer.warnings(saved.warnings());
            let run = config.output_dir.display();
            printer.note(&format!(
                "the run in {run} has ended: nothing is left to train"
            ));
            print(&report, arguments.json, printer)?;
            return Ok(exit(&report));
        }
        Some(saved)
    } else {
        // Said before weights are read; the run directory itself settles who is first.
        run_directory::refuse_used(&config.output_dir)?;
        None
    };
    let places = open_stages(&config, printer)?;
    let output_dir = config.output_dir.clone();

    let run = match saved {
        Some(saved) => Run::resume(config, &places, saved)?,
        None => Run::prepare(config, &places)?,
    };
    for dataset in run.datasets() {
        printer.note(&summary::dataset(dataset));
    }
    let stop = interrupt::flag(printer)?;
    let mut progress = Progress::new(printer);
    let report = run.train(&stop, &mut |event| progress.show(event))?;
    progress.finish();

    print(&report, arguments.json, printer)?;
    if !arguments.json {
        printer.note("");
        printer.note(&format!(
            "try: loraloom generate --run {} --compare-base PROMPT",
            output_dir.display()
        ));
    }
    Ok(exit(&report))
}

/// The configuration that is named, or that the run directory keeps which is named in its place.
fn configuration(arguments: &TrainArguments, printer: &Printer) -> anyhow::Result<RunConfig> {
    let mut named = arguments.config.clone();
    let mut output_dir = arguments.output_dir.clone();
    if arguments.resume && named.config.is_dir() {
        if output_dir.is_some() {
            let message = "`--output-dir` and a run directory to resume are given";
            return Err(Failure::usage(message)
                .hint("give the run directory alone: `loraloom train --resume RUN`")
                .into());
        }
        let directory = named.config;
        named.config = directory.join(run_directory::CONFIG_FILE);
        if !named.config.exists() {
            // There is none to be resumed either, and this says so.
            SavedRun::newest(&directory)?;
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

fn print(report: &RunReport, json: bool, printer: &Printer) -> anyhow::Result<()> {
    if json {
        return printer.json(report);
    }
    printer.data(&summary::table(report))?;
    let samples = summary::samples(report);
    if !samples.is_empty() {
        printer.data(&format!("\n{samples}"))?;
    }
    Ok(())
}

/// What every stage is on, said on the way.
fn open_stages(config: &RunConfig, printer: &Printer) -> anyhow::Result<Vec<StagePlace>> {
    let mut places = Vec::new();
    let stages = device::open_stages(config)?;
    let several = stages.len() > 1;
    let model = config.model.display();
    if several {
        let count = stages.len();
        printer.note(&format!("model   {model} in {count} stages"));
    }
    for (index, stage) in stages.into_iter().enumerate() {
        if let OpenedStage::Local(opened) = &stage {
            printer.warnings(&opened.warnings);
        }
        printer.note(&if several {
            format!("stage {index} on {stage}")
        } else {
            format!("model   {model} on {stage}")
        });
        places.push(match stage {
            OpenedStage::Local(opened) => StagePlace::Device(opened.device),
            OpenedStage::Remote(address) => worker(&address)?,
        });
    }
    Ok(places)
}

#[cfg(feature = "remote")]
fn worker(address: &WorkerAddress) -> anyhow::Result<StagePlace> {
    let address = format!("remote:{address}").parse();
    let address = address.map_err(|error| Failure::usage(format!("{error}")))?;
    Ok(StagePlace::Worker(address))
}

#[cfg(not(feature = "remote"))]
fn worker(_: &WorkerAddress) -> anyhow::Result<StagePlace> {
    let failure = Failure::new(Exit::Device, "this build reaches no workers");
    Err(failure.hint("build with `--features remote`").into())
}

fn exit(report: &RunReport) -> Exit {
    let failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed { .. });
    if report.interrupted {
        Exit::Interrupted
    } else if report
        .adapters
        .iter()
        .any(|adapter| failed(&adapter.outcome))
    {
        Exit::Failed
    } else {
        Exit::Success
    }
}
