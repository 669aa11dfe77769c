use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs},
    str::FromStr,
};

use burn::remote::EndpointId;
use thiserror::Error;

/// Where a worker is: `remote:<id>@<host>:<port>`, where the id is its public key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerAddress {
    id: EndpointId,
    /// Host and port.
    place: String,
}

/// A text that is no worker's address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not remote:<id>@<host>:<port>: {problem}")]
pub struct AddressError {
    text: String,
    problem: &'static str,
}

impl WorkerAddress {
    pub(super) fn new(id: EndpointId, place: impl fmt::Display) -> Self {
        Self {
            id,
            place: place.to_string(),
        }
    }

    pub(super) fn id(&self) -> EndpointId {
        self.id
    }

    /// Every address the host's name stands for.
    pub(super) fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        Ok(self.place.to_socket_addrs()?.collect())
    }
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "remote:{}@{}", self.id, self.place)
    }
}

impl FromStr for WorkerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = |problem| AddressError {
            text: text.to_owned(),
            problem,
        };
        let rest = text
            .strip_prefix("remote:")
            .ok_or_else(|| wrong("it does not begin with `remote:`"))?;
        let (id, place) = rest.split_once('@').ok_or_else(|| wrong("it has no `@`"))?;
        let id = id
            .parse()
            .map_err(|_| wrong("the id is not 64 hexadecimal digits of a public key"))?;
        let (host, port) = place
            .rsplit_once(':')
            .ok_or_else(|| wrong("it has no port"))?;
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        if !matches!(port.parse(), Ok(1..=u16::MAX)) {
            return Err(wrong("the port is not a number from 1 to 65535"));
        }
        let place = place.to_owned();
        Ok(Self { id, place })
    }
}

#[cfg(test)]
mod tests {
    use super::WorkerAddress;

    const ID: &str = "ae58ff8833241ac82d6ff7611046ed67b5072d142c588d0063e942d9a75502b6";

    #[test]
    fn an_address_is_written_as_it_is_read() {
        for place in ["10.0.0.7:4433", "[::1]:4433", "node-7.lan:65535"] {
            let text = format!("remote:{ID}@{place}");
            let address: WorkerAddress = text.parse().expect("an address");
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, problem) in [
            (ID.to_owned(), "begin"),
            (format!("remote:{ID}"), "@"),
            ("remote:abc@host:1".to_owned(), "public key"),
            (format!("remote:{ID}@host"), "port"),
            (format!("remote:{ID}@:1"), "host"),
            (format!("remote:{ID}@host:0"), "65535"),
        ] {
            let error = text.parse::<WorkerAddress>().expect_err(&text).to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
