//! Ctrl-C: the first asks the run to stop after its step, the second ends the process.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::{exit::Exit, printer::Printer};

/// A flag that Ctrl-C, SIGTERM and SIGHUP set.
///
/// # Errors
///
/// If the operating system refuses the handler.
pub(crate) fn flag(printer: &Printer) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let (handler_stop, printer) = (Arc::clone(&stop), printer.clone());
    ctrlc::set_handler(move || {
        if handler_stop.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(Exit::Interrupted as u8));
        }
        printer.note("stopping after this step; everything will be saved (Ctrl-C again quits now)");
    })?;
    Ok(stop)
}
