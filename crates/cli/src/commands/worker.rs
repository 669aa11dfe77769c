//! `worker`: serves a stage to a run on another machine.

use crate::{arguments::WorkerArguments, exit::Exit, printer::Printer};

#[cfg(feature = "remote")]
pub(super) fn run(arguments: &WorkerArguments, printer: &Printer) -> anyhow::Result<Exit> {
    use std::{fs, sync::mpsc};

    use loraloom_pipeline::remote::{Worker, WorkerOptions};

    use crate::{device, failure::Failure, interrupt};

    let token = fs::read_to_string(&arguments.token_file).map_err(|error| {
        let path = arguments.token_file.display();
        Failure::usage(format!("cannot read the token in {path}: {error}"))
            .hint("it may hold any text, such as the output of `openssl rand -hex 32`")
    })?;
    let opened = device::open(arguments.device)?;
    printer.warnings(&opened.warnings);
    let (stop, stopped) = mpsc::channel();
    interrupt::on_stop(move || {
        // The receiver is gone if the worker was stopped already.
        let _ = stop.send(());
    })?;
    let lines = printer.clone();
    let worker = Worker::start(WorkerOptions {
        listen: arguments.listen,
        identity: arguments.identity.clone(),
        token: token.trim().to_owned(),
        model: arguments.model.clone(),
        device: opened.device.clone(),
        stand_in: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        log: Box::new(move |line| lines.note(line)),
    })
    .map_err(failure)?;
    let model = arguments.model.display();
    printer.note(&format!(
        "worker  {model} on {opened}, waiting for a controller"
    ));
    printer.data(&worker.address().to_string())?;
    // Fails only if the handler is gone, and it never ends.
    let _ = stopped.recv();
    printer.note("stopped");
    drop(worker);
    Ok(Exit::Interrupted)
}

#[cfg(feature = "remote")]
fn failure(error: loraloom_pipeline::remote::ServeError) -> anyhow::Error {
    use loraloom_pipeline::remote::ServeError;

    use crate::failure::Failure;

    let exit = match error {
        ServeError::Model(error) => return error.into(),
        ServeError::Identity { .. } | ServeError::EmptyToken | ServeError::Listen { .. } => {
            Exit::Usage
        }
        ServeError::Device { .. } => Exit::Device,
    };
    Failure::new(exit, error.to_string()).into()
}

#[cfg(not(feature = "remote"))]
pub(super) fn run(_: &WorkerArguments, _: &Printer) -> anyhow::Result<Exit> {
    use crate::failure::Failure;

    let hint = "build with `cargo build --release --features remote`";
    let failure = Failure::new(Exit::Usage, "this build lacks the feature `remote`");
    Err(failure.hint(hint).into())
}
