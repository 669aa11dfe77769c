//! The devices and workers of a configuration, for the commands that train.

use loraloom_config::{RunConfig, StageLocation};
use loraloom_trainer::OpenedStage;

use crate::{device, printer::Printer};

/// Opens the devices of all stages, and prints a line for each.
///
/// # Errors
/// If a device does not exist, or a stage is a worker and this build has no support for workers.
pub(super) fn open(config: &RunConfig, printer: &Printer) -> anyhow::Result<Vec<OpenedStage>> {
    let mut opened = Vec::new();
    let stages = device::open_stages(config)?;
    let several = stages.len() > 1;
    let model = config.model.display();
    if several {
        let count = stages.len();
        printer.note(&format!("model   {model} in {count} stages"));
    }
    for (index, stage) in stages.into_iter().enumerate() {
        let name = match &stage {
            StageLocation::Device(opened) => {
                printer.warnings(&opened.warnings);
                opened.to_string()
            }
            StageLocation::Remote(address) => format!("{}:{}", address.host, address.port),
        };
        printer.note(&if several {
            format!("stage {index} on {name}")
        } else {
            format!("model   {model} on {name}")
        });
        opened.push(match stage {
            StageLocation::Device(device) => OpenedStage::Device(device.device),
            #[cfg(feature = "remote")]
            StageLocation::Remote(address) => OpenedStage::Remote(address),
            #[cfg(not(feature = "remote"))]
            StageLocation::Remote(_) => {
                use crate::{exit::Exit, failure::Failure};

                let failure = Failure::new(Exit::Device, "this build lacks the feature `remote`");
                let hint = "build with `cargo build --release --features remote`";
                return Err(failure.hint(hint).into());
            }
        });
    }
    Ok(opened)
}
