//! Turns errors into an exit code, a message and a hint.

use std::{collections::BTreeSet, error::Error, fmt, io, path::Path};

use loraloom_config::ConfigError;
use loraloom_data::DataError;
use loraloom_model::{ModelError, says_out_of_memory};
use loraloom_pipeline::PipelineError;
#[cfg(feature = "remote")]
use loraloom_pipeline::remote::WorkerError;
use loraloom_report::ReportError;
use loraloom_scheduler::SchedulerError;
use loraloom_server::{ServerError, queue::QueueError, with_causes};
use loraloom_simulator::SimulationError;
use loraloom_trainer::{AdapterReport, Outcome, RunReport, TO_FIT, TrainerError};

use crate::{exit::Exit, printer::Printer};

/// An error of this crate.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    hint: Option<String>,
}

impl Failure {
    /// A failure that exits with this code.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            hint: None,
        }
    }

    /// A mistake on the command line.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Adds a hint.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl Error for Failure {}

/// The result of writing a file that the command line names.
pub(crate) fn written<T>(path: &Path, result: io::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| {
        let exit = if is_full(&error) {
            Exit::Lost
        } else {
            Exit::Usage
        };
        Failure::new(exit, format!("cannot write `{}`: {error}", path.display()))
    })
}

/// Prints an error and returns the exit code. A closed pipe of the reader is no error.
pub(crate) fn report(printer: &Printer, error: &anyhow::Error) -> Exit {
    if is_broken_pipe(error) {
        return Exit::Success;
    }
    printer.error(&with_causes(error.as_ref()));
    if let Some(hint) = hint(error) {
        printer.hint(&hint);
    }
    printer.hint_way_back();
    exit(error)
}

/// The exit code of a completed run.
pub(crate) fn exit_of_run(report: &RunReport) -> Exit {
    let ends: Vec<_> = report.adapters.iter().map(does_not_fit).collect();
    if report.interrupted {
        Exit::Interrupted
    } else if ends.iter().all(Option::is_none) {
        Exit::Success
    } else if ends.iter().all(|&end| end == Some(true)) {
        Exit::Memory
    } else {
        Exit::Failed
    }
}

/// True if an adapter failed for lack of memory; `None` if it did not fail.
fn does_not_fit(adapter: &AdapterReport) -> Option<bool> {
    match &adapter.outcome {
        Outcome::Failed { does_not_fit, .. } => Some(*does_not_fit),
        _ => None,
    }
}

/// Prints the reasons why adapters did not finish, except those in `told`.
pub(crate) fn report_adapters(printer: &Printer, report: &RunReport, told: &BTreeSet<String>) {
    for AdapterReport { name, outcome, .. } in &report.adapters {
        if let Outcome::Failed { reason, .. } = outcome
            && !told.contains(name)
        {
            printer.error(&format!("{name} did not finish: {reason}"));
        }
    }
    if report
        .adapters
        .iter()
        .any(|adapter| does_not_fit(adapter) == Some(true))
    {
        printer.hint(TO_FIT);
    }
}

/// The exit code of an error.
pub(crate) fn exit(error: &anyhow::Error) -> Exit {
    error.chain().find_map(exit_of).unwrap_or(Exit::Internal)
}

/// The exit code of one cause, if its type has any.
fn exit_of(cause: &(dyn Error + 'static)) -> Option<Exit> {
    let failure = cause.downcast_ref().map(|failure: &Failure| failure.exit);
    let full = |error: &io::Error| is_full(error).then_some(Exit::Lost);
    failure
        .or_else(|| cause.downcast_ref().map(trainer_exit))
        .or_else(|| cause.downcast_ref().map(server_exit))
        .or_else(|| cause.downcast_ref().map(model_exit))
        .or_else(|| cause.downcast_ref().map(simulation_exit))
        .or_else(|| cause.downcast_ref().map(report_exit))
        .or_else(|| cause.downcast_ref().map(data_exit))
        .or_else(|| cause.downcast_ref().map(config_exit))
        .or_else(|| cause.downcast_ref().and_then(full))
}

fn trainer_exit(error: &TrainerError) -> Exit {
    match error {
        TrainerError::Model(error) => model_exit(error),
        TrainerError::Data(error) => data_exit(error),
        TrainerError::InitFrom { source, .. } => trainer_exit(source),
        TrainerError::Template(_)
        | TrainerError::ChangedAdapter { .. }
        | TrainerError::TokenBeyondVocabulary { .. }
        | TrainerError::OtherRows { .. }
        | TrainerError::DatasetChanged { .. }
        | TrainerError::Checkpoint { .. }
        | TrainerError::Unlisted { .. } => Exit::Data,
        TrainerError::NoCheckpoint { problems, .. } if !problems.is_empty() => Exit::Data,
        TrainerError::Pipeline(error) => pipeline_exit(error),
        // Once there is space, `--resume` continues from the last save.
        TrainerError::SavesFailed { .. } | TrainerError::DirectoryGone { .. } => Exit::Lost,
        TrainerError::Write { source, .. } if is_full(source) => Exit::Lost,
        TrainerError::OutOfMemory { .. }
        | TrainerError::DoesNotFit(_)
        | TrainerError::Scheduler(SchedulerError::NeverFits { .. }) => Exit::Memory,
        TrainerError::Source(error) => match error.downcast_ref() {
            Some(error) => server_exit(error),
            None => Exit::Internal,
        },
        TrainerError::Adapter(_) | TrainerError::Scheduler(_) | TrainerError::Decision { .. } => {
            Exit::Internal
        }
        TrainerError::Config(_)
        | TrainerError::Objective { .. }
        | TrainerError::NoToken
        | TrainerError::Token { .. }
        | TrainerError::NoStage
        | TrainerError::Partition(_)
        | TrainerError::Simulation(_)
        | TrainerError::RunExists { .. }
        | TrainerError::RunInUse { .. }
        | TrainerError::NoCheckpoint { .. }
        | TrainerError::ConfigChanged { .. }
        | TrainerError::AdapterGone { .. }
        | TrainerError::OtherModel { .. }
        | TrainerError::Write { .. }
        | TrainerError::Sweep(_)
        | TrainerError::NoSteps { .. }
        | TrainerError::NoTarget { .. }
        | TrainerError::OneToken { .. }
        | TrainerError::Start { .. }
        | TrainerError::UnsupportedDtype { .. }
        | TrainerError::Inference(_)
        | TrainerError::NoChatTemplate { .. } => Exit::Usage,
    }
}

fn data_exit(error: &DataError) -> Exit {
    match error {
        DataError::Kept { source, .. } if is_full(source) => Exit::Lost,
        _ => Exit::Data,
    }
}

fn config_exit(error: &ConfigError) -> Exit {
    match error {
        ConfigError::Absent(_) => Exit::Data,
        _ => Exit::Usage,
    }
}

fn server_exit(error: &ServerError) -> Exit {
    match error {
        ServerError::Queue(error) => queue_exit(error),
        ServerError::Trainer(error) => trainer_exit(error),
        ServerError::NeverFits { .. } => Exit::Memory,
        ServerError::Record { .. } | ServerError::CheckpointsGone { .. } => Exit::Data,
        ServerError::QueueGone { .. } => Exit::Lost,
        ServerError::Scheduler(_) => Exit::Internal,
        ServerError::Config(error) => config_exit(error),
        ServerError::Clone { .. }
        | ServerError::TwoNames { .. }
        | ServerError::NotServed { .. }
        | ServerError::Unserved { .. }
        | ServerError::NoConfiguration { .. }
        | ServerError::OtherModel { .. }
        | ServerError::NameUsed { .. }
        | ServerError::Path { .. } => Exit::Usage,
    }
}

fn queue_exit(error: &QueueError) -> Exit {
    match error {
        QueueError::NotAQueue { .. }
        | QueueError::Corrupt { .. }
        | QueueError::NewerSchema { .. } => Exit::Data,
        // Recoverable, like adapters that cannot be saved: accepted tasks continue once there is space.
        QueueError::DiskFull { .. } => Exit::Lost,
        QueueError::Io { source, .. } if is_full(source) => Exit::Lost,
        QueueError::Sqlite { .. } | QueueError::IllegalTransition { .. } => Exit::Internal,
        _ => Exit::Usage,
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

fn pipeline_exit(error: &PipelineError) -> Exit {
    match error {
        PipelineError::OutOfMemory { .. } | PipelineError::TooLarge { .. } => Exit::Memory,
        PipelineError::StageLost { .. } => Exit::Lost,
        PipelineError::Network { .. } => Exit::Device,
        #[cfg(feature = "remote")]
        PipelineError::Worker { problem, .. } => match problem {
            WorkerError::Unreachable { .. } | WorkerError::Busy { .. } => Exit::Device,
            WorkerError::Token | WorkerError::NoKey => Exit::Usage,
            WorkerError::Mismatch { .. } => Exit::Data,
            WorkerError::Failed { reason } => device_exit(reason),
        },
        _ => Exit::Internal,
    }
}

fn simulation_exit(error: &SimulationError) -> Exit {
    match error {
        SimulationError::Csv { .. }
        | SimulationError::NoJobs
        | SimulationError::NoRequests
        | SimulationError::MissingColumn { .. }
        | SimulationError::Field { .. } => Exit::Data,
        SimulationError::TooFewJobs { .. }
        | SimulationError::TooFewIterations { .. }
        | SimulationError::NotFitted
        | SimulationError::OutOfRange { .. }
        | SimulationError::TooLong { .. }
        | SimulationError::NothingToDraw { .. }
        | SimulationError::NoSpacing { .. }
        | SimulationError::TooLarge { .. } => Exit::Usage,
        SimulationError::Scheduler(_) | SimulationError::Starved { .. } => Exit::Internal,
    }
}

fn device_exit(reason: &str) -> Exit {
    if says_out_of_memory(reason) {
        Exit::Memory
    } else {
        Exit::Lost
    }
}

fn report_exit(error: &ReportError) -> Exit {
    match error {
        ReportError::NoEvents { .. } | ReportError::Write { .. } => Exit::Usage,
        ReportError::Read { .. } => Exit::Data,
    }
}

fn model_exit(error: &ModelError) -> Exit {
    match error {
        ModelError::Device { reason } => device_exit(reason),
        ModelError::Write { error, .. } if is_full(error) => Exit::Lost,
        ModelError::Write { .. }
        | ModelError::OutputExists(_)
        | ModelError::AlreadyQuantized
        | ModelError::Skip(_) => Exit::Usage,
        _ => Exit::Data,
    }
}

fn report_hint(error: &ReportError) -> Option<String> {
    error.hint().map(str::to_owned)
}

/// The hint of the first cause that has one.
pub(crate) fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        let failure = cause
            .downcast_ref()
            .and_then(|failure: &Failure| failure.hint.clone());
        failure
            .or_else(|| cause.downcast_ref().and_then(TrainerError::hint))
            .or_else(|| cause.downcast_ref().and_then(ServerError::hint))
            .or_else(|| cause.downcast_ref().and_then(report_hint))
            .or_else(|| cause.downcast_ref().and_then(DataError::hint))
            .or_else(|| cause.downcast_ref().and_then(ModelError::hint))
            .or_else(|| cause.downcast_ref().and_then(ConfigError::hint))
            .or_else(|| cause.downcast_ref().and_then(SimulationError::hint))
    })
}

/// False if the reader of stdout has closed the pipe, which does not change the exit code.
///
/// # Errors
/// Any other error of printing.
pub(crate) fn unless_unread(printed: anyhow::Result<()>) -> anyhow::Result<bool> {
    match printed {
        Ok(()) => Ok(true),
        Err(error) if is_broken_pipe(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Tells if the reader has closed the pipe.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;
    use loraloom_data::DataError;
    use loraloom_model::ModelError;
    use loraloom_server::{ServerError, queue::QueueError, with_causes};
    use loraloom_trainer::{AdapterReport, Outcome, RunReport, TO_FIT, TrainerError};

    use super::{Failure, exit, exit_of_run, hint, is_broken_pipe};
    use crate::exit::Exit;

    #[test]
    fn the_first_typed_cause_decides() {
        let failure = Failure::new(Exit::Device, "no device").hint("plug one in");
        let error = Err::<(), _>(failure).context("cannot start").unwrap_err();
        assert_eq!(exit(&error), Exit::Device);
        assert_eq!(hint(&error).as_deref(), Some("plug one in"));
        assert_eq!(with_causes(error.as_ref()), "cannot start: no device");
        assert_eq!(exit(&anyhow::anyhow!("what")), Exit::Internal);
    }

    #[test]
    fn a_device_without_memory_is_told_from_a_lost_one() {
        let exit = |reason: &str| {
            let reason = reason.to_owned();
            exit(&TrainerError::Model(ModelError::Device { reason }).into())
        };
        // In the words of CUDA and of CubeCL.
        for reason in [
            "CUDA_ERROR_OUT_OF_MEMORY: Out of memory",
            "out of device memory allocating 8388608 bytes",
        ] {
            assert_eq!(exit(reason), Exit::Memory, "{reason}");
        }
        assert_eq!(exit("device lost"), Exit::Lost);
    }

    #[test]
    fn a_run_that_does_not_fit_is_not_lost() {
        let reason = "out of device memory allocating 8388608 bytes".to_owned();
        let device = TrainerError::Model(ModelError::Device { reason });
        let error = TrainerError::DoesNotFit(Box::new(device)).into();
        assert_eq!(exit(&error), Exit::Memory);
        assert_eq!(
            with_causes(error.as_ref()),
            "the run does not fit in memory: the device failed: out of device memory allocating 8388608 bytes"
        );
        assert_eq!(hint(&error).as_deref(), Some(TO_FIT));
    }

    #[test]
    fn a_run_of_which_nothing_fits_ends_as_such() {
        let failed = |does_not_fit| Outcome::Failed {
            reason: String::new(),
            does_not_fit,
        };
        let of = |outcomes: Vec<Outcome>, interrupted| {
            let adapter = |outcome| AdapterReport {
                name: String::new(),
                outcome,
                steps: 0,
                total_steps: 1,
                first_loss: None,
                last_loss: None,
                best: None,
                directory: None,
                samples: Vec::new(),
            };
            exit_of_run(&RunReport {
                adapters: outcomes.into_iter().map(adapter).collect(),
                interrupted,
                seconds: 1.0,
                tokens: 1,
                sweeps: Vec::new(),
                memory: None,
            })
        };
        for (outcomes, interrupted, expected) in [
            (vec![Outcome::Done], false, Exit::Success),
            (vec![failed(true), failed(true)], false, Exit::Memory),
            (vec![failed(true), failed(false)], false, Exit::Failed),
            (vec![failed(true), Outcome::Done], false, Exit::Failed),
            (vec![failed(true)], true, Exit::Interrupted),
        ] {
            let of_these = format!("{outcomes:?}");
            assert_eq!(of(outcomes, interrupted), expected, "{of_these}");
        }
    }

    /// Any file that a server cannot write first because the disk is full.
    #[test]
    fn a_full_disk_is_not_wrong_usage() {
        let path = "run/queue.sqlite".into();
        let error = ServerError::Queue(QueueError::DiskFull { path });
        let told = TrainerError::Source(Box::new(error));
        assert_eq!(exit(&told.into()), Exit::Lost);
    }

    #[test]
    fn causes_are_not_said_twice() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let path = "rows.jsonl".into();
        let error = anyhow::Error::from(DataError::Io { path, source });
        assert_eq!(
            with_causes(error.as_ref()),
            "cannot read rows.jsonl: entity not found"
        );
        assert_eq!(exit(&error), Exit::Data);
        let inner = io::Error::other("disk on fire");
        let outer = anyhow::Error::new(inner).context("cannot write: disk on fire");
        assert_eq!(with_causes(outer.as_ref()), "cannot write: disk on fire");
    }

    #[test]
    fn a_closed_pipe_is_told_from_other_errors() {
        let closed = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_broken_pipe(&closed));
        assert!(!is_broken_pipe(&anyhow::Error::from(io::Error::other(
            "full"
        ))));
    }
}
