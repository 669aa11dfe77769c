//! The command line. Comments on arguments are the help text, and the help text is the documentation.

mod bench;
mod command;
mod config;
mod generate;
mod queue;
mod simulate;
mod train;
mod values;

pub(crate) use bench::BenchArguments;
pub(crate) use command::{Arguments, Command, OutputArguments};
pub(crate) use config::{
    CheckArguments, ConfigArguments, ConfigCommand, DoctorArguments, InitArguments,
};
pub(crate) use generate::GenerateArguments;
pub(crate) use queue::{
    CloneArguments, ServeArguments, StatusArguments, SubmitArguments, TaskArguments,
};
pub(crate) use simulate::SimulateArguments;
pub(crate) use train::{PlanArguments, TrainArguments, WorkerArguments};
