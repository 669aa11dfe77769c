//! Reads and writes devices: `auto`, `cpu`, `wgpu`, `wgpu:0`, `cuda`, `cuda:1`.

use std::{fmt, str::FromStr};

use crate::DeviceChoice;

/// A text that does not parse as a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown device `{text}`: {}", expected(text))]
pub struct ParseDeviceError {
    text: String,
}

fn expected(text: &str) -> &'static str {
    if text.starts_with("remote:") {
        "a worker is a stage, name it in `pipeline.stages`"
    } else {
        "expected auto, cpu, wgpu, wgpu:<index>, cuda or cuda:<index>"
    }
}

impl FromStr for DeviceChoice {
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || ParseDeviceError {
            text: text.to_owned(),
        };
        let (kind, index) = match text.split_once(':') {
            Some((kind, digits)) => (kind, Some(digits.parse().map_err(|_| unknown())?)),
            None => (text, None),
        };
        match (kind, index) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            ("wgpu", index) => Ok(Self::Wgpu(index)),
            ("cuda", index) => Ok(Self::Cuda(index)),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Wgpu(None) => f.write_str("wgpu"),
            Self::Wgpu(Some(index)) => write!(f, "wgpu:{index}"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
        }
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = ParseDeviceError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DeviceChoice> for String {
    fn from(device: DeviceChoice) -> Self {
        device.to_string()
    }
}
