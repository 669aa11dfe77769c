//! The command line. Doc comments of arguments are the help texts, and `docs/cli.md` is generated
//! from them.

mod bench;
mod command;
mod config;
mod data;
mod eval;
mod generate;
mod merge;
mod queue;
#[cfg(test)]
mod reference;
mod report;
mod simulate;
mod source;
mod train;
mod values;

pub(crate) use bench::{BenchArguments, ServingBenchArguments};
pub(crate) use command::{Arguments, Command, OutputArguments};
pub(crate) use config::{
    CheckArguments, ConfigArguments, ConfigCommand, DoctorArguments, InitArguments,
};
pub(crate) use data::{DataCommand, PreviewArguments};
pub(crate) use eval::EvalArguments;
pub(crate) use generate::GenerateArguments;
pub(crate) use merge::{ExportArguments, ExportFormat, MergeArguments, VerifyArguments};
pub(crate) use queue::{
    CloneArguments, InferenceArguments, ServeArguments, StatusArguments, SubmitArguments,
    TaskArguments,
};
pub(crate) use report::{ReportArguments, WatchArguments};
pub(crate) use simulate::SimulateArguments;
pub(crate) use source::{
    AdapterArguments, ComputeArguments, QuantizationArgument, SourceArguments,
};
pub(crate) use train::{PlanArguments, TrainArguments, WorkerArguments};
