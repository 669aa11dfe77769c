//! The devices and workers of a configuration, for the commands that train.

use loraloom_config::{RunConfig, WorkerAddress};
use loraloom_trainer::StagePlace;

#[cfg(not(feature = "remote"))]
use crate::exit::Exit;
use crate::{
    device::{self, OpenedStage},
    failure::Failure,
    printer::Printer,
};

/// Opens the device of every stage and prints it.
///
/// # Errors
///
/// If there is no such device.
pub(super) fn open(config: &RunConfig, printer: &Printer) -> anyhow::Result<Vec<StagePlace>> {
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
    Err(failure
        .hint("build with `cargo build --release --features remote`")
        .into())
}
