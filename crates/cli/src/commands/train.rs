//! `train CONFIG`: every adapter to its end.

use loraloom_config::LoadOptions;
use loraloom_trainer::{Outcome, Run, RunReport};

use super::config;
use crate::{
    arguments::TrainArguments, device, exit::Exit, interrupt, printer::Printer, progress::Progress,
    run_directory, summary,
};

pub(super) fn run(arguments: TrainArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let options = LoadOptions {
        output_dir: arguments.output_dir,
        ..config::options(&arguments.config)
    };
    let mut config = config::load(&options, &arguments.config, printer)?;
    if let Some(device) = arguments.device {
        config.device = device;
    }
    // Said before weights are read; the run directory itself settles who is first.
    run_directory::refuse_used(&config.output_dir)?;
    let opened = device::open(config.device)?;
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
