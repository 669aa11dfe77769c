//! `--events-to COMMAND`: new lines of `events.jsonl` on the standard input of a command.
//!
//! It follows the file rather than the run, so that a slow command never delays training and gets the same bytes as
//! the file.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use loraloom_trainer::EVENTS_FILE;

use crate::{exit::Exit, failure::Failure, printer::Printer};

/// Interval at which new events are read.
const EVERY: Duration = Duration::from_millis(200);
/// Time after which a message names the command that is waited for.
const SOON: Duration = Duration::from_secs(1);
/// Time that the command has to end once it has all events.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command that gets the events of a run.
#[derive(Debug)]
pub(crate) struct EventPipe {
    command: String,
    child: Child,
    run_ended: Arc<AtomicBool>,
    sender: JoinHandle<io::Result<()>>,
}

impl EventPipe {
    /// Starts a shell command that gets the events that are written to `directory` from now on.
    ///
    /// # Errors
    /// If there is no shell.
    pub(crate) fn start(command: &str, directory: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::new(Exit::Usage, format!("cannot start `{command}`: {error}"))
        };
        let mut child = shell(command)
            .stdin(Stdio::piped())
            // stdout of the run is reserved for data.
            .stdout(io::stderr())
            .spawn()
            .map_err(failed)?;
        let to = child.stdin.take();
        let mut events = Follower::at_end_of(directory.join(EVENTS_FILE)).map_err(failed)?;
        let run_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&run_ended);
        let sender = thread::spawn(move || {
            let Some(mut to) = to else { return Ok(()) };
            loop {
                let is_last = ended.load(Ordering::SeqCst);
                to.write_all(&events.new_lines()?)?;
                if is_last {
                    return Ok(());
                }
                thread::sleep(EVERY);
            }
        });
        Ok(Self {
            command: command.to_owned(),
            child,
            run_ended,
            sender,
        })
    }

    /// Sends the last events and waits for the command to end. Warns if it did not get them or failed.
    pub(crate) fn finish(mut self, printer: &Printer) {
        self.run_ended.store(true, Ordering::SeqCst);
        let command = &self.command;
        let (began, mut told) = (Instant::now(), false);
        let status = loop {
            let waited = began.elapsed();
            if waited > SOON && !std::mem::replace(&mut told, true) {
                let most = PATIENCE.as_secs();
                printer.note(&format!(
                    "events  waits for `{command}` to end, {most} s at most"
                ));
            }
            match self.child.try_wait() {
                Ok(None) if waited < PATIENCE => thread::sleep(EVERY / 10),
                Ok(None) => break None,
                Ok(Some(status)) => break Some(status.to_string()).filter(|_| !status.success()),
                Err(error) => break Some(error.to_string()),
            }
        };
        if status.is_none() && matches!(self.child.try_wait(), Ok(None)) {
            printer.warning(&format!(
                "`{command}` did not end within {} s of the last event, and was killed",
                PATIENCE.as_secs()
            ));
            // It may have ended in the meantime.
            let _ = self.child.kill();
            let _ = self.child.wait();
            return;
        }
        let sent = self.sender.join();
        match (status, sent) {
            (Some(status), _) => {
                printer.warning(&format!("the events command `{command}` failed: {status}"));
            }
            (None, Ok(Err(error))) => printer.warning(&format!(
                "`{command}` did not receive all events: {error}; they are in {EVENTS_FILE}"
            )),
            (None, _) => {}
        }
    }
}

#[cfg(unix)]
fn shell(command: &str) -> Command {
    use std::os::unix::process::CommandExt;

    let mut shell = Command::new("sh");
    // Ctrl-C is for the run; its last events follow.
    shell.args(["-c", command]).process_group(0);
    shell
}

#[cfg(not(unix))]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("cmd");
    shell.args(["/C", command]);
    shell
}

/// Reads the lines that are appended to a file.
#[derive(Debug)]
struct Follower {
    path: PathBuf,
    /// Bytes of complete lines that were read.
    read: u64,
}

impl Follower {
    /// Starts after the last complete line.
    fn at_end_of(path: PathBuf) -> io::Result<Self> {
        let mut follower = Self { path, read: 0 };
        follower.new_lines()?;
        Ok(follower)
    }

    /// The complete lines that were added.
    fn new_lines(&mut self) -> io::Result<Vec<u8>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut lines = Vec::new();
        file.read_to_end(&mut lines)?;
        let whole = lines.iter().rposition(|&byte| byte == b'\n');
        lines.truncate(whole.map_or(0, |last| last + 1));
        self.read += lines.len() as u64;
        Ok(lines)
    }
}
