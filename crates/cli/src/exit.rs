//! What the process says to whoever started it.

use std::{fmt::Write, process::ExitCode};

/// The exit codes. They are public API: scripts tell failures apart by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Everything asked for was done; every adapter finished.
    Success = 0,
    /// Some adapter failed or some check did not pass; the other adapters are saved.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// Data or model files are missing or wrong.
    Data = 3,
    /// It would not fit in memory.
    Memory = 4,
    /// There is no such device.
    Device = 5,
    /// A bug in loraloom.
    Internal = 70,
    /// A worker or device was lost.
    Lost = 75,
    /// Interrupted; everything is saved.
    Interrupted = 130,
}

impl Exit {
    /// All of them, in the order of their numbers.
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
            Self::Failed => "some adapter failed (the others are saved)",
            Self::Usage => "usage or configuration",
            Self::Data => "data or model files",
            Self::Memory => "would not fit in memory",
            Self::Device => "no such device",
            Self::Internal => "internal error",
            Self::Lost => {
                "stopped by a lost worker or device, or a full disk; `train --resume` continues"
            }
            Self::Interrupted => "interrupted, everything saved; `train --resume` continues",
        }
    }

    /// The table of codes, for the help text.
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
