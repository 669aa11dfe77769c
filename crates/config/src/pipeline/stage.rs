use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::WorkerAddress;
use crate::{DeviceChoice, ParseError};

/// The location of a stage. In a configuration, `D` is a [`DeviceChoice`], and it is written `cpu`,
/// `cuda:1`, `wgpu:0` or `remote:<id>@<host>:<port>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StageLocation<D = DeviceChoice> {
    /// A device of this machine.
    Device(D),
    /// A worker on another machine.
    Remote(WorkerAddress),
}

impl<D> From<D> for StageLocation<D> {
    fn from(device: D) -> Self {
        Self::Device(device)
    }
}

impl FromStr for StageLocation {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with("remote:") {
            return Ok(Self::Remote(text.parse()?));
        }
        text.parse().map(Self::Device).map_err(|_| {
            ParseError(format!(
                "unknown device `{text}`: expected auto, cpu, wgpu, wgpu:<index>, cuda, \
                 cuda:<index> or remote:<id>@<host>:<port>"
            ))
        })
    }
}

impl fmt::Display for StageLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => device.fmt(f),
            Self::Remote(address) => address.fmt(f),
        }
    }
}

impl Serialize for StageLocation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StageLocation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::StageLocation;
    use crate::DeviceChoice;

    #[test]
    fn stages_are_read_as_they_are_written() {
        let remote = format!("remote:{}@[::1]:7", "ab".repeat(32));
        for text in ["auto", "cpu", "cuda", "cuda:1", "wgpu:0", &remote] {
            let stage: StageLocation = text.parse().unwrap();
            assert_eq!(stage.to_string(), text);
        }
        let second = StageLocation::Device(DeviceChoice::Cuda(Some(1)));
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
            assert!(text.parse::<StageLocation>().is_err(), "{text}");
        }
    }
}
