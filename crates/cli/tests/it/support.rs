//! Running the binary in a directory of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output},
};

use tempfile::TempDir;

/// A directory with the files of `loraloom init`, which is also the working directory.
pub(crate) struct Workspace {
    directory: TempDir,
}

impl Workspace {
    /// A fresh one.
    pub(crate) fn new() -> Self {
        let this = Self::empty();
        let run = this.run(&["init"]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        this
    }

    /// One without files.
    pub(crate) fn empty() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// A path below the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file, with the directories above it.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// What a command said, with the directory as it is.
    pub(crate) fn with_paths(&self, text: &str) -> String {
        text.replace("[DIR]", self.directory.path().to_str().unwrap())
    }

    /// The command, ready to be run here.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.command_under(&[], arguments)
    }

    /// The command, ready to be run here by another program.
    pub(crate) fn command_under(&self, program: &[&str], arguments: &[&str]) -> Command {
        let loraloom = assert_cmd::cargo::cargo_bin!("loraloom");
        let mut command = match program {
            [] => Command::new(loraloom),
            [program, options @ ..] => {
                let mut command = Command::new(program);
                command.args(options).arg(loraloom);
                command
            }
        };
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env("NO_COLOR", "1")
            .env("COLUMNS", "100");
        command
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        self.run_in("", arguments)
    }

    /// As [`run`](Self::run), with a directory below as the working directory.
    pub(crate) fn run_in(&self, name: &str, arguments: &[&str]) -> Run {
        let mut command = self.command(arguments);
        self.finish(command.current_dir(self.path(name)))
    }

    /// Runs a command to its end.
    pub(crate) fn finish(&self, command: &mut Command) -> Run {
        Run::new(&command.output().unwrap(), self.directory.path())
    }
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    fn new(output: &Output, directory: &Path) -> Self {
        let text = |bytes: &[u8]| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            text.replace(directory.to_str().unwrap(), "[DIR]")
        };
        Self {
            code: output.status.code().unwrap(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    /// Everything, for a snapshot.
    pub(crate) fn all(&self) -> String {
        let Self {
            code,
            stdout,
            stderr,
        } = self;
        format!("exit {code}\n--- stdout\n{stdout}--- stderr\n{stderr}")
    }

    /// stderr below the command line, for a snapshot of several.
    pub(crate) fn after(&self, arguments: &[&str]) -> String {
        format!("$ loraloom {}\n{}\n", arguments.join(" "), self.stderr)
    }

    /// stdout as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        match serde_json::from_str(&self.stdout) {
            Ok(value) => value,
            Err(error) => panic!("{error} in {:?}; stderr: {}", self.stdout, self.stderr),
        }
    }
}

/// Sends a signal, such as `-INT`. The shell's own `kill` is there where no program of that name is.
#[cfg(unix)]
pub(crate) fn signal(process: &Child, name: &str) {
    let mut shell = Command::new("sh");
    let kill = shell.args(["-c", "kill \"$0\" \"$1\"", name, &process.id().to_string()]);
    assert!(kill.status().unwrap().success());
}
