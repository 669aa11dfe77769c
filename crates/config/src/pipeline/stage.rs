use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{ParseWorkerError, WorkerAddress};
use crate::DeviceChoice;

/// Prefix of a worker's address.
const REMOTE: &str = "remote:";

/// Device or worker that holds a stage, written `cpu`, `cuda:1`, `wgpu:0` or
/// `remote:<id>@<host>:<port>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StageChoice {
    /// A device of this machine.
    Device(DeviceChoice),
    /// A worker on another machine.
    Remote(WorkerAddress),
}

/// A text that does not parse as a stage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseStageError {
    /// Neither a device nor a worker.
    #[error(
        "unknown device `{0}`: expected auto, cpu, wgpu, wgpu:<index>, cuda, cuda:<index> or \
         remote:<id>@<host>:<port>"
    )]
    Device(String),
    /// A worker, but not its address.
    #[error(transparent)]
    Worker(#[from] ParseWorkerError),
}

impl FromStr for StageChoice {
    type Err = ParseStageError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix(REMOTE) {
            Some(address) => Ok(Self::Remote(address.parse()?)),
            None => match text.parse() {
                Ok(device) => Ok(Self::Device(device)),
                Err(_) => Err(ParseStageError::Device(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for StageChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => device.fmt(f),
            Self::Remote(address) => write!(f, "{REMOTE}{address}"),
        }
    }
}

impl TryFrom<String> for StageChoice {
    type Error = ParseStageError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<StageChoice> for String {
    fn from(stage: StageChoice) -> Self {
        stage.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::StageChoice;
    use crate::DeviceChoice;

    #[test]
    fn stages_are_read_as_they_are_written() {
        let remote = format!("remote:{}@[::1]:7", "ab".repeat(32));
        for text in ["auto", "cpu", "cuda", "cuda:1", "wgpu:0", &remote] {
            let stage: StageChoice = text.parse().unwrap();
            assert_eq!(stage.to_string(), text);
        }
        let second = StageChoice::Device(DeviceChoice::Cuda(Some(1)));
        assert_eq!("cuda:1".parse(), Ok(second));
        for text in [
            "gpu",
            "",
            "cpu:0",
            "remote",
            "remote:",
            "remote:x@y:1",
            "Remote:x",
        ] {
            assert!(text.parse::<StageChoice>().is_err(), "{text}");
        }
    }
}
