//! Signals: Ctrl-C and its like ask a run to stop after its step, and end the process when they come
//! again; SIGUSR1 asks it to save.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::{exit::Exit, printer::Printer};

/// A flag that Ctrl-C, SIGTERM and SIGHUP set.
///
/// # Errors
/// If the operating system refuses the handler.
pub(crate) fn stop(printer: &Printer) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let (handler_stop, printer) = (Arc::clone(&stop), printer.clone());
    on_stop(move || {
        if handler_stop.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(Exit::Interrupted as u8));
        }
        printer.note("stopping after this step; everything will be saved (Ctrl-C again quits now)");
    })?;
    Ok(stop)
}

/// A flag that SIGUSR1 sets, where there are such signals. Without a handler it ends the process, so
/// this comes before anything that takes long.
///
/// # Errors
/// As [`stop`].
pub(crate) fn save() -> anyhow::Result<Arc<AtomicBool>> {
    let save = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&save))?;
    Ok(save)
}

/// Calls `act` on another thread whenever Ctrl-C, SIGTERM or SIGHUP comes.
///
/// # Errors
/// As [`stop`].
#[cfg(unix)]
pub(crate) fn on_stop(mut act: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    use signal_hook::{
        consts::{SIGHUP, SIGINT, SIGTERM},
        iterator::Signals,
    };

    let mut signals = vec![SIGINT, SIGTERM];
    // `nohup` has SIGHUP ignored so that a run outlives its terminal. The others are handled all the
    // same: shells have SIGINT ignored by whatever a script starts in the background.
    if !is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    let mut signals = Signals::new(signals)?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || signals.forever().for_each(|_| act()))?;
    Ok(())
}

/// Calls `act` on another thread whenever Ctrl-C comes.
///
/// # Errors
/// As [`stop`].
#[cfg(not(unix))]
pub(crate) fn on_stop(act: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    Ok(ctrlc::set_handler(act)?)
}

/// Tells if the process started with this signal ignored. Only Linux says so without a system call
/// that is not safe; elsewhere none is.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
