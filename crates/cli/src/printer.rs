//! Prints data to stdout and everything else to stderr.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use clap::builder::styling::{AnsiColor, Style};
use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use loraloom_data::reading;
use serde::Serialize;

use crate::{arguments::OutputArguments, screen};

/// Time between plain lines about data that is read.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of the stack of the thread that prints them.
const PLAIN_STACK: usize = 128 << 10;

/// Status of a line of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// No problem.
    Pass,
    /// Works, but probably not as intended.
    Warn,
    /// Does not work.
    Fail,
}

/// Prints according to the output arguments and the terminal.
#[derive(Debug, Clone)]
pub(crate) struct Printer {
    quiet: bool,
    bars: Option<MultiProgress>,
    color_stderr: bool,
    color_stdout: bool,
    /// Warnings and errors that wait until the dashboard releases the terminal.
    held: Arc<Mutex<Option<Vec<String>>>>,
    /// Command that continues the run if it ends early.
    way_back: Arc<OnceLock<String>>,
}

impl Printer {
    /// A printer for this process.
    pub(crate) fn new(arguments: &OutputArguments) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let plain = no_color || plain_terminal();
        let terminal = io::stderr().is_terminal();
        let draws = terminal && !arguments.quiet && !arguments.no_progress && !plain_terminal();
        Self {
            quiet: arguments.quiet,
            bars: draws.then(|| MultiProgress::with_draw_target(screen::target())),
            color_stderr: terminal && !plain,
            color_stdout: io::stdout().is_terminal() && !plain,
            held: Arc::default(),
            way_back: Arc::default(),
        }
    }

    /// The live bars, if stderr is a terminal that can be redrawn.
    pub(crate) fn bars(&self) -> Option<&MultiProgress> {
        self.bars.as_ref()
    }

    /// Keeps warnings and errors, and drops notes, until [`release`](Self::release), while something else uses the
    /// terminal.
    pub(crate) fn hold(&self) {
        self.held().get_or_insert_default();
    }

    /// Prints what was kept, and stops keeping.
    pub(crate) fn release(&self) {
        let held = self.held().take();
        for line in held.iter().flatten() {
            self.stderr(line);
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Vec<String>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy that draws no bars if there is a dashboard.
    pub(crate) fn beside_dashboard(&self, dashboard: bool) -> Self {
        Self {
            bars: self.bars.clone().filter(|_| !dashboard),
            ..self.clone()
        }
    }

    /// Clears a frame of bars that was drawn at another width of the terminal.
    pub(crate) fn wipe(&self, lines: usize, columns: usize) {
        if let Some(bars) = &self.bars {
            screen::wipe(lines, columns);
            bars.set_draw_target(screen::target());
        }
    }

    /// A spinner below everything else, until it is finished; `None` if bars cannot be drawn.
    pub(crate) fn spinner(&self, what: &'static str) -> Option<ProgressBar> {
        let spinner = self.bars.as_ref()?.add(ProgressBar::new_spinner());
        spinner.set_style(style("{spinner} {msg} {elapsed}"));
        spinner.set_message(what);
        spinner.enable_steady_tick(Duration::from_millis(100));
        Some(spinner)
    }

    /// A bar with a known total, until it is finished; `None` if bars cannot be drawn.
    pub(crate) fn bar(&self, what: &'static str, total: usize) -> Option<ProgressBar> {
        let bar = self.bars.as_ref()?.add(ProgressBar::new(total as u64));
        bar.set_style(style("{bar:30} {pos}/{len} {msg} {elapsed}"));
        bar.set_message(what);
        Some(bar)
    }

    /// Trained text for stdout, in colour if that is enabled.
    pub(crate) fn trained(&self, text: &str) -> String {
        styled(self.color_stdout, AnsiColor::Green, text)
    }

    /// Runs `work` under a spinner, which shows how far data is read; without one, plain lines do.
    pub(crate) fn while_busy<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        let Some(spinner) = self.spinner(what) else {
            return self.with_plain_lines(work);
        };
        let now = move |_: &ProgressState, to: &mut dyn fmt::Write| {
            // The terminal cannot report an error.
            let _ = match reading() {
                Some(reading) => write!(to, "{reading}"),
                None => to.write_str(what),
            };
        };
        spinner.set_style(style("{spinner} {now} {elapsed}").with_key("now", now));
        let done = work();
        spinner.finish_and_clear();
        done
    }

    fn with_plain_lines<T>(&self, work: impl FnOnce() -> T) -> T {
        let (ends, end) = channel::<()>();
        thread::scope(|scope| {
            let lines = move || {
                while end.recv_timeout(PLAIN_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    if let Some(reading) = reading() {
                        self.note(&reading.to_string());
                    }
                }
            };
            // Without a thread to spare nothing is printed.
            let _ = thread::Builder::new()
                .stack_size(PLAIN_STACK)
                .spawn_scoped(scope, lines);
            let done = work();
            drop(ends);
            done
        })
    }

    /// A line of data, to stdout.
    ///
    /// # Errors
    /// If stdout cannot be written; a closed pipe is an error like any other here.
    pub(crate) fn data(&self, line: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let written = self.suspended(|| {
            stdout.write_all(line.as_bytes())?;
            if !line.ends_with('\n') {
                stdout.write_all(b"\n")?;
            }
            stdout.flush()
        });
        written.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write to stdout: {error}"))
        })
    }

    /// Prints a value as JSON to stdout.
    ///
    /// # Errors
    /// As [`data`](Self::data).
    pub(crate) fn json(&self, value: &impl Serialize) -> anyhow::Result<()> {
        self.data(&serde_json::to_string_pretty(value)?)?;
        Ok(())
    }

    /// Prints a line of a report to stdout, with its hint below.
    ///
    /// # Errors
    /// As [`data`](Self::data).
    pub(crate) fn status(&self, status: Status, line: &str, hint: Option<&str>) -> io::Result<()> {
        let (word, color) = match status {
            Status::Pass => ("PASS", AnsiColor::Green),
            Status::Warn => ("WARN", AnsiColor::Yellow),
            Status::Fail => ("FAIL", AnsiColor::Red),
        };
        let word = styled(self.color_stdout, color, word);
        let hint = hint.map_or_else(String::new, |hint| {
            let label = styled(self.color_stdout, AnsiColor::Cyan, "hint");
            format!("\n      {label}: {hint}")
        });
        self.data(&format!("{word}  {line}{hint}"))
    }

    /// Prints a line to stderr, unless `--quiet`.
    pub(crate) fn note(&self, line: &str) {
        if !self.quiet && self.held().is_none() {
            self.stderr(line);
        }
    }

    /// Prints a warning about something legal but probably unintended.
    pub(crate) fn warning(&self, text: &str) {
        if !self.quiet {
            self.labelled(AnsiColor::Yellow, "warning", text);
        }
    }

    /// Prints several warnings.
    pub(crate) fn warnings(&self, texts: &[String]) {
        for text in texts {
            self.warning(text);
        }
    }

    /// Prints an error, also with `--quiet`.
    pub(crate) fn error(&self, text: &str) {
        self.labelled(AnsiColor::Red, "error", text);
    }

    /// Prints a hint.
    pub(crate) fn hint(&self, text: &str) {
        self.labelled(AnsiColor::Cyan, "hint", text);
    }

    /// Sets the command that continues the run after an early end.
    pub(crate) fn set_way_back(&self, command: String) {
        // A process has one run.
        let _ = self.way_back.set(command);
    }

    /// Prints the command that continues a run that has ended early.
    pub(crate) fn hint_way_back(&self) {
        if let Some(command) = self.way_back.get() {
            let way_back = format!("continue from the last checkpoint with `{command}`");
            self.hint(&way_back);
        }
    }

    fn labelled(&self, color: AnsiColor, label: &str, text: &str) {
        let label = styled(self.color_stderr, color, label);
        let line = format!("{label}: {text}");
        if let Some(held) = self.held().as_mut() {
            held.push(line);
            return;
        }
        self.stderr(&line);
    }

    fn stderr(&self, line: &str) {
        // A failure here cannot be reported.
        let _ = self.suspended(|| writeln!(io::stderr().lock(), "{line}"));
    }

    /// Takes the bars off the screen while `write` runs.
    fn suspended<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bars {
            Some(bars) => bars.suspend(write),
            None => write(),
        }
    }
}

/// A bar's style; the templates are constants.
pub(crate) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// True if stdout is a terminal that can be redrawn.
pub(crate) fn is_screen() -> bool {
    io::stdout().is_terminal() && !plain_terminal()
}

/// True if the terminal cannot move its cursor.
fn plain_terminal() -> bool {
    std::env::var_os("TERM").is_some_and(|value| value == "dumb")
}

fn styled(color: bool, with: AnsiColor, word: &str) -> String {
    if color {
        let style: Style = with.on_default().bold();
        format!("{style}{word}{style:#}")
    } else {
        word.to_owned()
    }
}

/// The text with control characters escaped: they belong to the data, not to the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() && !matches!(character, '\n' | '\t') {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        for (text, shown) in [
            ("a\u{1b}[31m\tb\r\n", "a\\u{1b}[31m\tb\\r\n"),
            ("\0\u{7f}\u{9b}2J", "\\u{0}\\u{7f}\\u{9b}2J"),
            ("é ⟦", "é ⟦"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }
}
