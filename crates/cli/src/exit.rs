//! The exit codes.

use std::{fmt::Write, process::ExitCode};

/// An exit code. They are public API: scripts tell failures apart by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Every adapter finished, every check passed.
    Success = 0,
    /// An adapter failed or a check did not pass; the other adapters are saved.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// Data or model files are missing or wrong.
    Data = 3,
    /// The run would not fit in memory.
    Memory = 4,
    /// A device or worker does not exist or does not work.
    Device = 5,
    /// A bug in loraloom.
    Internal = 70,
    /// A worker, a device or the disk failed during the run.
    Lost = 75,
    /// Interrupted by a signal, after saving.
    Interrupted = 130,
}

impl Exit {
    /// All codes, in ascending order.
    const ALL: [Self; 9] = [
        Self::Success,
        Self::Failed,
        Self::Usage,
        Self::Data,
        Self::Memory,
        Self::Device,
        Self::Internal,
        Self::Lost,
        Self::Interrupted,
    ];

    fn meaning(self) -> &'static str {
        match self {
            Self::Success => "success: every adapter finished",
            Self::Failed => "an adapter failed (the others are saved) or a check did not pass",
            Self::Usage => "wrong command line or configuration",
            Self::Data => "missing or wrong data or model files",
            Self::Memory => "does not fit in memory",
            Self::Device => "no such device or worker, or it does not work",
            Self::Internal => "internal error",
            Self::Lost => {
                "lost a worker or device, or the disk is full; continue with `train --resume`"
            }
            Self::Interrupted => "interrupted after saving; continue with `train --resume`",
        }
    }

    /// The table of codes for the help text.
    pub(crate) fn table() -> String {
        let mut table = String::from("Exit codes:\n");
        for exit in Self::ALL {
            // Writing to a string cannot fail.
            let _ = writeln!(table, "  {:>3}  {}", exit as u8, exit.meaning());
        }
        table
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
