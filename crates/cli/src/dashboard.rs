//! The dashboard of a run on the terminal: `watch`, and `--tui` of `train` and `serve`.
//!
//! It reads `events.jsonl` as any other reader does, so it looks the same in the training process and in another one,
//! and training never waits for it.

use std::{
    fs::File,
    io::{Read, Stdout, Write, stdout},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use loraloom_report::{Dashboard, RunHistory};
use ratatui::{
    Terminal, TerminalOptions, Viewport,
    backend::{Backend, TermionBackend},
    layout::{Rect, Size},
};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::{
    history::read_history,
    printer::{Printer, is_screen},
};

/// Interval at which the log and the keyboard are read.
const EVERY: Duration = Duration::from_millis(100);
/// Switches to the alternate screen and hides the cursor; and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// The terminal's previous modes, while a dashboard uses it.
static BEFORE: Mutex<Option<(File, Termios)>> = Mutex::new(None);

/// A dashboard for a run of this process, until it is dropped.
#[derive(Debug)]
pub(crate) struct LiveDashboard {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LiveDashboard {
    /// Shows the run in `directory` until a key closes it; then `printer` prints notes again. `None` if stdout is not
    /// a terminal.
    pub(crate) fn start(directory: &Path, printer: &Printer) -> Option<Self> {
        if !is_screen() {
            printer.warning("--tui needs stdout to be a terminal; plain lines follow");
            return None;
        }
        let over = Arc::new(AtomicBool::new(false));
        let (directory, printer) = (directory.to_owned(), printer.clone());
        let ended = Arc::clone(&over);
        printer.hold();
        let thread = thread::spawn(move || {
            let hint = "up and down select an adapter   q closes this view   Ctrl-C stops the run";
            let shown = show(&directory, hint, &ended);
            restore();
            printer.release();
            if let Err(error) = shown {
                printer.warning(&format!("the dashboard is closed: {error}"));
            }
        });
        let thread = Some(thread);
        Some(Self { over, thread })
    }
}

impl Drop for LiveDashboard {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // A dashboard's failure does not fail the run.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Shows the run in `directory`, of any process, until a key closes it.
///
/// # Errors
/// If the terminal or the log cannot be used.
pub(crate) fn watch(directory: &Path) -> anyhow::Result<()> {
    let hint = "up and down select an adapter   q quits";
    let shown = show(directory, hint, &AtomicBool::new(false));
    restore();
    shown
}

/// Restores the terminal if a dashboard uses it, also before the process exits early.
pub(crate) fn restore() {
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((terminal, modes)) = before.take() {
        // Nothing helps if the terminal is gone.
        let _ = tcsetattr(&terminal, OptionalActions::Now, &modes);
        let _ = stdout().write_all(LEAVE).and_then(|()| stdout().flush());
    }
}

/// Puts the terminal into raw input without echo; Ctrl-C still sends its signal.
fn take() -> anyhow::Result<(Terminal<TermionBackend<Stdout>>, File)> {
    let keys = File::open("/dev/tty")?;
    let before = tcgetattr(&keys)?;
    let mut modes = before.clone();
    modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    modes.special_codes[rustix::termios::SpecialCodeIndex::VMIN] = 0;
    modes.special_codes[rustix::termios::SpecialCodeIndex::VTIME] = 0;
    tcsetattr(&keys, OptionalActions::Now, &modes)?;
    *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some((keys.try_clone()?, before));
    stdout().write_all(ENTER)?;
    let backend = TermionBackend::new(stdout());
    // A terminal of unknown size reports 0.
    let Size { width, height } = backend.size()?;
    let viewport = if width == 0 || height == 0 {
        Viewport::Fixed(Rect::new(0, 0, 80, 24))
    } else {
        Viewport::Fullscreen
    };
    let terminal = Terminal::with_options(backend, TerminalOptions { viewport })?;
    Ok((terminal, keys))
}

fn show(directory: &Path, hint: &str, over: &AtomicBool) -> anyhow::Result<()> {
    let (mut terminal, mut keys) = take()?;
    let mut dashboard = Dashboard::default();
    let mut history: Option<RunHistory> = None;
    while !over.load(Ordering::Relaxed) {
        match &mut history {
            Some(history) => drop(history.update()?),
            // A run that has not begun has no log yet.
            None => history = read_history(directory).ok(),
        }
        let nothing = RunHistory::default();
        let shown = history.as_ref().unwrap_or(&nothing);
        terminal.draw(|frame| dashboard.draw(shown, hint, frame))?;
        let mut pressed = [0; 16];
        let count = keys.read(&mut pressed)?;
        if closes(&pressed[..count], &mut dashboard, shown.adapters()) {
            break;
        }
        thread::sleep(EVERY);
    }
    Ok(())
}

/// Handles typed keys. Returns whether to close the dashboard.
fn closes(mut keys: &[u8], dashboard: &mut Dashboard, adapters: usize) -> bool {
    while let Some((first, rest)) = keys.split_first() {
        let (forward, after) = match (first, rest) {
            (b'q' | b'Q', _) => return true,
            (b'j', _) => (true, rest),
            (b'k', _) => (false, rest),
            (0x1b, [b'[' | b'O', b'B', after @ ..]) => (true, after),
            (0x1b, [b'[' | b'O', b'A', after @ ..]) => (false, after),
            _ => {
                keys = rest;
                continue;
            }
        };
        dashboard.select(forward, adapters);
        keys = after;
    }
    false
}
