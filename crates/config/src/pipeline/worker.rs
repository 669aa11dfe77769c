use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use super::endpoint_id;

/// Longest name of a host, and of a part of it between dots.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// Address and identity of a worker: `<id>@<host>:<port>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerAddress {
    /// The worker's public key in 64 hexadecimal digits, as iroh prints it.
    pub id: String,
    /// Name or IP address of its machine; an IPv6 address has no brackets here.
    pub host: String,
    /// UDP port.
    pub port: u16,
}

/// Why a text is no worker's address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseWorkerError {
    /// A part is missing.
    #[error("`{0}` is no worker's address: expected <id>@<host>:<port>")]
    Form(String),
    /// The text before `@` is not a public key.
    #[error(
        "`{0}` is no worker's id: expected the public key that `loraloom worker` prints, 64 \
         hexadecimal digits or 52 characters of base32"
    )]
    Id(String),
    /// The host can be no machine's.
    #[error("`{0}` is no host: expected a name, an IPv4 address or an IPv6 address in brackets")]
    Host(String),
    /// The text after the last `:` is not a port.
    #[error("`{0}` is no port: expected a number from 1 to 65535")]
    Port(String),
}

impl FromStr for WorkerAddress {
    type Err = ParseWorkerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || ParseWorkerError::Form(text.to_owned());
        let (id, place) = text.split_once('@').ok_or_else(form)?;
        let (host, port) = place.rsplit_once(':').ok_or_else(form)?;
        if id.is_empty() || host.is_empty() {
            return Err(form());
        }
        let id = endpoint_id::canonical(id).ok_or_else(|| ParseWorkerError::Id(id.to_owned()))?;
        let host = checked_host(host).ok_or_else(|| ParseWorkerError::Host(host.to_owned()))?;
        match port.parse() {
            Ok(0) | Err(_) => Err(ParseWorkerError::Port(port.to_owned())),
            Ok(port) => Ok(Self { id, host, port }),
        }
    }
}

/// The host without brackets.
fn checked_host(host: &str) -> Option<String> {
    if let Some(inner) = host.strip_prefix('[') {
        let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
        return Some(address.to_string());
    }
    let numeric = |c: char| c.is_ascii_digit() || c == '.';
    if host.chars().all(numeric) {
        let address: Ipv4Addr = host.parse().ok()?;
        return Some(address.to_string());
    }
    let safe = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let label = |label: &str| {
        (1..=LONGEST_LABEL).contains(&label.len())
            && label.chars().all(safe)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // A dot at the end says that the name is complete.
    let labels = host.strip_suffix('.').unwrap_or(host);
    (host.len() <= LONGEST_NAME && labels.split('.').all(label)).then(|| host.to_owned())
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, host, port } = self;
        if host.contains(':') {
            write!(f, "{id}@[{host}]:{port}")
        } else {
            write!(f, "{id}@{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ParseWorkerError, WorkerAddress};

    fn id() -> String {
        "0123456789abcdef".repeat(4)
    }

    fn parse(place: &str) -> Result<WorkerAddress, ParseWorkerError> {
        format!("{}@{place}", id()).parse()
    }

    #[test]
    fn names_and_addresses_survive_the_round_trip() {
        for (place, host) in [
            ("gpu-1:4433", "gpu-1"),
            ("a_b.example.org.:1", "a_b.example.org."),
            ("10.0.0.7:65535", "10.0.0.7"),
            ("[::1]:80", "::1"),
            ("[FE80:0:0:0:0:0:0:1]:80", "fe80::1"),
        ] {
            let address = parse(place).unwrap();
            assert_eq!((&address.id, address.host.as_str()), (&id(), host));
            assert_eq!(address.to_string().parse(), Ok(address.clone()), "{place}");
        }
        let upper = format!("{}@h:1", id().to_uppercase());
        assert_eq!(upper.parse(), parse("h:1"));
    }

    #[test]
    fn what_cannot_be_an_address_is_told_apart() {
        let error = |place: &str| parse(place).unwrap_err();
        for place in ["", "host", ":1"] {
            assert!(matches!(error(place), ParseWorkerError::Form(_)), "{place}");
        }
        for place in [
            "::1:80",
            "[::1:80",
            "[10.0.0.1]:80",
            "10.0.0:80",
            "300.1.1.1:80",
            "a..b:1",
            "-a:1",
            "a-:1",
            "a b:1",
            "a/b:1",
            "[fe80::1%eth0]:1",
        ] {
            assert!(matches!(error(place), ParseWorkerError::Host(_)), "{place}");
        }
        let long = format!("{}:1", "a".repeat(64));
        assert!(matches!(error(&long), ParseWorkerError::Host(_)));
        for place in ["h:", "h:0", "h:65536", "h:x", "h:-1"] {
            assert!(matches!(error(place), ParseWorkerError::Port(_)), "{place}");
        }
        let unknown: Result<WorkerAddress, _> = "abc@h:1".parse();
        assert!(matches!(unknown.unwrap_err(), ParseWorkerError::Id(_)));
        let none: Result<WorkerAddress, _> = "@h:1".parse();
        assert!(matches!(none.unwrap_err(), ParseWorkerError::Form(_)));
    }
}
