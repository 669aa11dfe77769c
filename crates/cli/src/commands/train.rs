//! `train CONFIG`: every adapter to its end.

use loraloom_config::{LoadOptions, RunConfig, ScheduleChoice};
use loraloom_trainer::{Outcome, Run, RunReport};

use super::config;
use crate::{
    arguments::TrainArguments,
    device::{self, Opened, OpenedStage},
    exit::Exit,
    failure::Failure,
    interrupt,
    printer::Printer,
    progress::Progress,
    run_directory, summary,
};

pub(super) fn run(arguments: TrainArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let options = LoadOptions {
        output_dir: arguments.output_dir,
        ..config::options(&arguments.config)
    };
    let mut config = config::load(&options, &arguments.config, printer)?;
    if let Some(device) = arguments.device {
        device::replace(&mut config, device)?;
    }
    // Said before weights are read; the run directory itself settles who is first.
    run_directory::refuse_used(&config.output_dir)?;
    let opened = open_only_stage(&config)?;
    printer.warnings(&opened.warnings);
    printer.note(&format!("model   {} on {opened}", config.model.display()));
    let output_dir = config.output_dir.clone();

    let run = Run::prepare(config, opened.device)?;
    for dataset in run.datasets() {
        printer.note(&summary::dataset(dataset));
    }
    let stop = interrupt::flag(printer)?;
    let mut progress = Progress::new(printer);
    let report = run.train(&stop, &mut |event| progress.show(event))?;
    progress.finish();

    if arguments.json {
        printer.json(&report)?;
    } else {
        printer.data(&summary::table(&report))?;
        let samples = summary::samples(&report);
        if !samples.is_empty() {
            printer.data(&format!("\n{samples}"))?;
        }
        printer.note("");
        printer.note(&format!(
            "try: loraloom generate --run {} --compare-base PROMPT",
            output_dir.display()
        ));
    }
    Ok(exit(&report))
}

/// Stages are not executed yet, so one is all there may be, working in the plainest way.
fn open_only_stage(config: &RunConfig) -> Result<Opened, Failure> {
    let pipeline = &config.pipeline;
    let plain = pipeline.microbatches == 1 && pipeline.schedule == ScheduleChoice::Lorapp;
    if plain
        && pipeline.stages.len() == 1
        && let Some(OpenedStage::Local(opened)) = device::open_stages(config)?.pop()
    {
        return Ok(opened);
    }
    let message = "pipelines are not executed in this version: several stages, workers, other \
                   schedules and micro-batches are for `loraloom plan` only";
    Err(Failure::usage(message)
        .hint("train on one device: leave `pipeline` out, or name one stage and nothing else"))
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
