use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use loraloom_model::{create_directories, create_directory, sync_directory};
use serde::Serialize;

use super::{ADAPTERS, CHECKPOINTS, CONFIG_FILE, Claim, EVENTS_FILE, Identity};
use crate::{
    TrainerError,
    error::{Result, on},
};

/// The directory of one run, locked against other processes.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    events: File,
    /// Bytes of complete events.
    length: u64,
    /// Identity of the event file.
    list: Identity,
    identity: Identity,
    _claim: Claim,
}

/// True if a run was begun in a directory.
pub(crate) fn is_run(directory: &Path) -> bool {
    let holds = |name: &&str| directory.join(name).exists();
    [EVENTS_FILE, CONFIG_FILE, CHECKPOINTS].iter().any(holds)
}

/// True if a run has left steps, adapters or checkpoints in a directory. Unreadable files count.
pub fn holds_run(directory: &Path) -> bool {
    let is_there =
        |error: io::Error| !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    let events = fs::read_to_string(directory.join(EVENTS_FILE));
    let stepped = events.map_or_else(is_there, |events| events.contains(r#""event":"step""#));
    let holds = |name: &str| {
        let entries = fs::read_dir(directory.join(name));
        entries.map_or_else(is_there, |mut entries| entries.next().is_some())
    };
    stepped || holds(ADAPTERS) || holds(CHECKPOINTS)
}

/// Directory of an adapter; `which` is `last` or `best`.
pub(crate) fn adapter(directory: &Path, name: &str, which: &str) -> PathBuf {
    directory.join(ADAPTERS).join(name).join(which)
}

impl RunDirectory {
    /// Creates the directory, with the resolved configuration and an empty event file. A directory that already holds
    /// a run is never changed, unless that ended before its first checkpoint: then there is nothing to lose or to
    /// resume.
    pub(crate) fn create(path: &Path, config: &str) -> Result<Self> {
        on(path, create_directories(path))?;
        let exists = || TrainerError::RunExists {
            path: path.to_owned(),
        };
        let adapters = path.join(ADAPTERS);
        let events_path = path.join(EVENTS_FILE);
        let some = adapters.exists() || events_path.exists();
        if some && holds_run(path) {
            return Err(exists());
        }
        let claim = Claim::take(path)?;
        if some {
            // The previous owner of the claim may have begun a run.
            if holds_run(path) {
                return Err(exists());
            }
            on(&events_path, File::create(&events_path))?;
            return Self::resume(path, config, claim);
        }
        // Creating the event file decides between two runs that start at once: one fails here.
        let events = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(&events_path);
        let events = match events {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(exists()),
            events => on(&events_path, events)?,
        };
        on(&adapters, fs::create_dir(&adapters))?;
        let checkpoints = path.join(CHECKPOINTS);
        on(&checkpoints, create_directory(&checkpoints))?;
        keep_config(path, config)?;
        Self::of(path, events, claim)
    }

    /// Opens the directory of a run to resume it. Events are appended; a partial line of a killed process is cut off.
    pub(crate) fn resume(path: &Path, config: &str, claim: Claim) -> Result<Self> {
        let events_path = path.join(EVENTS_FILE);
        let text = match fs::read(&events_path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            text => text,
        };
        let text = on(&events_path, text)?;
        let end = text.iter().rposition(|&byte| byte == b'\n');
        let length = end.map_or(0, |end| end as u64 + 1);
        let events = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&events_path);
        let events = on(&events_path, events)?;
        on(&events_path, events.set_len(length))?;
        if fs::read_to_string(path.join(CONFIG_FILE)).ok().as_deref() != Some(config) {
            keep_config(path, config)?;
        }
        for part in [ADAPTERS, CHECKPOINTS] {
            let part = path.join(part);
            on(&part, create_directory(&part))?;
        }
        Self::of(path, events, claim)
    }

    /// The directory in its initial state, with open files.
    fn of(path: &Path, events: File, claim: Claim) -> Result<Self> {
        let list = path.join(EVENTS_FILE);
        Ok(Self {
            path: path.to_owned(),
            length: on(&list, events.metadata())?.len(),
            events,
            list: on(&list, Identity::of(&list))?,
            identity: on(path, Identity::of(path))?,
            _claim: claim,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// True if the directory is still at its path.
    pub(crate) fn is_there(&self) -> bool {
        self.identity.is_at(&self.path)
    }

    /// Directory of the checkpoints.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }

    pub(crate) fn adapter(&self, name: &str, which: &str) -> PathBuf {
        adapter(&self.path, name, which)
    }

    /// The form of a path in events.
    pub(crate) fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.path)
            .unwrap_or(path)
            .display()
            .to_string()
    }

    /// Creates `events.jsonl` again if it was removed or replaced. Returns whether it was.
    pub(crate) fn replace_events(&mut self) -> io::Result<bool> {
        let path = self.path.join(EVENTS_FILE);
        if self.list.is_at(&path) || !self.is_there() {
            return Ok(false);
        }
        self.events = OpenOptions::new().append(true).create(true).open(&path)?;
        self.length = self.events.metadata()?.len();
        self.list = Identity::of(&path)?;
        Ok(true)
    }

    /// Appends a complete line to `events.jsonl`, or nothing.
    pub(crate) fn append(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_string(line)?;
        line.push('\n');
        if let Err(error) = self.events.write_all(line.as_bytes()) {
            self.events.set_len(self.length)?;
            return Err(error);
        }
        self.length += line.len() as u64;
        Ok(())
    }
}

/// Writes the configuration and waits until it is on the disk, since a resume reads it.
fn keep_config(directory: &Path, config: &str) -> Result<()> {
    let path = directory.join(CONFIG_FILE);
    let next = directory.join(format!("{CONFIG_FILE}.tmp"));
    let write = || {
        let mut file = File::create(&next)?;
        file.write_all(config.as_bytes())?;
        file.sync_all()
    };
    on(&next, write())?;
    on(&path, fs::rename(&next, &path))?;
    on(directory, sync_directory(directory))
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::{Claim, EVENTS_FILE, RunDirectory};

    #[test]
    fn half_a_line_is_cut_off_before_a_run_goes_on() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("run");
        let mut run = RunDirectory::create(&path, "").expect("a new run");
        run.append(&"whole").expect("written");
        run.events.write_all(b"\"hal").expect("written");
        drop(run);
        let claim = Claim::take(&path).expect("nobody trains it");
        let mut run = RunDirectory::resume(&path, "", claim).expect("it goes on");
        run.append(&"next").expect("written");
        let events = fs::read_to_string(path.join(EVENTS_FILE)).expect("events");
        assert_eq!(events, "\"whole\"\n\"next\"\n");
    }
}
