//! Reads and writes devices: `auto`, `cpu`, `wgpu`, `wgpu:0`, `cuda`, `cuda:1`.

use std::{fmt, str::FromStr};

use crate::{DeviceChoice, ParseError};

impl FromStr for DeviceChoice {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // No index is `Some(None)`, and an invalid one is `None`.
        let (kind, index) = match text.split_once(':') {
            Some((kind, digits)) => (kind, digits.parse().ok().map(Some)),
            None => (text, Some(None)),
        };
        match (kind, index) {
            ("auto", Some(None)) => Ok(Self::Auto),
            ("cpu", Some(None)) => Ok(Self::Cpu),
            ("wgpu", Some(index)) => Ok(Self::Wgpu(index)),
            ("cuda", Some(index)) => Ok(Self::Cuda(index)),
            _ => {
                let expected = if kind == "remote" && kind != text {
                    "list workers in `pipeline.stages`"
                } else {
                    "expected auto, cpu, wgpu, wgpu:<index>, cuda or cuda:<index>"
                };
                Err(ParseError(format!("unknown device `{text}`: {expected}")))
            }
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
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DeviceChoice> for String {
    fn from(device: DeviceChoice) -> Self {
        device.to_string()
    }
}
