//! Signals. Ctrl-C, SIGTERM and SIGHUP stop a run after its step, and end the process if repeated.
//! SIGUSR1 saves it.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use loraloom_trainer::{Standby, TrainerError};

use crate::{exit::Exit, failure, printer::Printer};

/// Time that a stop waits for the current step. Slurm and Kubernetes kill after 30 seconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Flags that a run polls to stop, and the standby that stops it inside a step.
#[derive(Clone, Default)]
pub(crate) struct Stop {
    /// Set by Ctrl-C, SIGTERM and SIGHUP.
    pub(crate) asked: Arc<AtomicBool>,
    pub(crate) standby: Arc<Standby>,
}

/// Handles Ctrl-C, SIGTERM and SIGHUP. The process ends inside a step that takes too long.
///
/// # Errors
/// If the operating system refuses the handler.
pub(crate) fn stop(printer: &Printer) -> anyhow::Result<Stop> {
    let stop = Stop::default();
    let Stop { asked, standby } = stop.clone();
    let printer = printer.clone();
    on_stop(move || {
        if asked.swap(true, Ordering::SeqCst) {
            #[cfg(unix)]
            crate::dashboard::restore();
            process::exit(i32::from(Exit::Interrupted as u8));
        }
        printer.note("stopping after this step; everything will be saved (Ctrl-C again quits now)");
        let (standby, printer) = (Arc::clone(&standby), printer.clone());
        thread::spawn(move || {
            thread::sleep(PATIENCE);
            loop {
                if let Some(saved) = standby.take_over() {
                    #[cfg(unix)]
                    crate::dashboard::restore();
                    printer.release();
                    process::exit(i32::from(cut_short(&printer, saved) as u8));
                }
                thread::sleep(PATIENCE / 100);
            }
        });
    })?;
    Ok(stop)
}

/// A flag that Ctrl-C, SIGTERM and SIGHUP set. A second signal ends the process.
///
/// # Errors
/// See [`stop`].
pub(crate) fn stop_answering(printer: &Printer) -> anyhow::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    let (is_asked, printer) = (Arc::clone(&asked), printer.clone());
    on_stop(move || {
        if is_asked.swap(true, Ordering::SeqCst) {
            process::exit(i32::from(Exit::Interrupted as u8));
        }
        printer.note("stopping when running answers are complete (Ctrl-C again quits now)");
    })?;
    Ok(asked)
}

/// Reports that a run ends inside a step.
fn cut_short(printer: &Printer, saved: Result<(), TrainerError>) -> Exit {
    if let Err(error) = saved {
        return failure::report(printer, &error.into());
    }
    printer.note(&format!(
        "the current step takes more than {} seconds: it is dropped, and repeated on resume",
        PATIENCE.as_secs()
    ));
    printer.hint_way_back();
    Exit::Interrupted
}

/// A flag that SIGUSR1 sets, on Unix. Without a handler SIGUSR1 ends the process, so call this before
/// anything slow.
///
/// # Errors
/// See [`stop`].
pub(crate) fn save() -> anyhow::Result<Arc<AtomicBool>> {
    let save = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&save))?;
    Ok(save)
}

/// Calls `act` on another thread whenever Ctrl-C, SIGTERM or SIGHUP comes.
///
/// # Errors
/// See [`stop`].
#[cfg(unix)]
pub(crate) fn on_stop(mut act: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    use signal_hook::{
        consts::{SIGHUP, SIGINT, SIGTERM},
        iterator::Signals,
    };

    let mut signals = vec![SIGINT, SIGTERM];
    // Respect `nohup`, which ignores SIGHUP so that a run outlives its terminal. Handle the others
    // even if ignored: shells ignore SIGINT for background processes of scripts.
    if !is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    let mut signals = Signals::new(signals)?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || signals.forever().for_each(|_| act()))?;
    Ok(())
}

/// Calls `act` on another thread whenever Ctrl-C comes.
///
/// # Errors
/// See [`stop`].
#[cfg(not(unix))]
pub(crate) fn on_stop(act: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    Ok(ctrlc::set_handler(act)?)
}

/// True if the process started with this signal ignored. Always false outside Linux, where only an
/// unsafe system call tells.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::io;

    use loraloom_trainer::TrainerError;

    use super::cut_short;
    use crate::{arguments::OutputArguments, exit::Exit, printer::Printer};

    #[test]
    fn a_copy_that_could_not_be_saved_is_no_interruption() {
        let printer = Printer::new(&OutputArguments::default());
        let full = TrainerError::Write {
            path: "run".into(),
            source: io::ErrorKind::StorageFull.into(),
        };
        assert_eq!(cut_short(&printer, Err(full)), Exit::Lost);
        assert_eq!(cut_short(&printer, Ok(())), Exit::Interrupted);
    }
}
