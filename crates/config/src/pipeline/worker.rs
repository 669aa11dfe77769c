use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use data_encoding::{BASE32_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};

use crate::ParseError;

/// The prefix of a worker's address.
const REMOTE: &str = "remote:";

/// Characters of a key in hexadecimal digits, and in base32 without padding.
const HEX_DIGITS: usize = 64;
const BASE32_CHARACTERS: usize = 52;

/// Longest name of a host, and longest part of it between dots.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// The address of a worker and its key: `remote:<id>@<host>:<port>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerAddress {
    /// The worker's public key in 64 hexadecimal digits, as iroh prints it.
    pub id: String,
    /// Name or IP address of its machine; an IPv6 address has no brackets here.
    pub host: String,
    /// UDP port.
    pub port: u16,
}

impl FromStr for WorkerAddress {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.strip_prefix(REMOTE).unwrap_or_default();
        let form = || {
            ParseError(format!(
                "`{text}` is not a worker's address: expected <id>@<host>:<port>"
            ))
        };
        let (id, place) = text.split_once('@').ok_or_else(form)?;
        let (host, port) = place.rsplit_once(':').ok_or_else(form)?;
        if id.is_empty() || host.is_empty() {
            return Err(form());
        }
        Ok(Self {
            id: canonical_id(id).ok_or_else(|| {
                ParseError(format!(
                    "`{id}` is not a worker's ID: expected the public key that `loraloom worker` \
                     prints, 64 hexadecimal digits or 52 characters of base32"
                ))
            })?,
            host: checked_host(host).ok_or_else(|| {
                ParseError(format!(
                    "`{host}` is not a host: expected a name, an IPv4 address or an IPv6 address in \
                     brackets"
                ))
            })?,
            port: port.parse().ok().filter(|port| *port != 0).ok_or_else(|| {
                ParseError(format!(
                    "`{port}` is not a port: expected a number from 1 to 65535"
                ))
            })?,
        })
    }
}

/// A public key in lower-case hexadecimal digits, from any form that iroh reads. Only a connection shows
/// whether the key exists.
fn canonical_id(text: &str) -> Option<String> {
    let key = match text.len() {
        HEX_DIGITS => HEXLOWER_PERMISSIVE.decode(text.as_bytes()),
        // Refuses nonzero bits beyond the key, which would give one key two texts.
        BASE32_CHARACTERS => BASE32_NOPAD.decode(text.to_ascii_uppercase().as_bytes()),
        _ => return None,
    };
    key.ok().map(|key| HEXLOWER.encode(&key))
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
    // A final dot marks a complete name.
    let labels = host.strip_suffix('.').unwrap_or(host);
    (host.len() <= LONGEST_NAME && labels.split('.').all(label)).then(|| host.to_owned())
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, host, port } = self;
        if host.contains(':') {
            write!(f, "{REMOTE}{id}@[{host}]:{port}")
        } else {
            write!(f, "{REMOTE}{id}@{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ParseError, WorkerAddress, canonical_id};

    /// The public key of the secret key of 32 zeros.
    const HEX: &str = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29";
    /// The same by Python's `base64.b32encode`.
    const BASE32: &str = "HNVCPPGOW2SC2YVDVDICU3YNONSTEFLXDXREHJR2YBEKDC2Z3IUQ";

    fn id() -> String {
        "0123456789abcdef".repeat(4)
    }

    fn parse(place: &str) -> Result<WorkerAddress, ParseError> {
        format!("remote:{}@{place}", id()).parse()
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
        let upper = format!("remote:{}@h:1", id().to_uppercase());
        assert_eq!(upper.parse(), parse("h:1"));
    }

    #[test]
    fn what_cannot_be_an_address_is_told_apart() {
        let error = |place: &str| parse(place).unwrap_err().to_string();
        for place in ["", "host", ":1"] {
            assert!(
                error(place).contains("is not a worker's address"),
                "{place}"
            );
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
            assert!(error(place).contains("is not a host"), "{place}");
        }
        let long = format!("{}:1", "a".repeat(64));
        assert!(error(&long).contains("is not a host"));
        for place in ["h:", "h:0", "h:65536", "h:x", "h:-1"] {
            assert!(error(place).contains("is not a port"), "{place}");
        }
        let error = |text: &str| text.parse::<WorkerAddress>().unwrap_err().to_string();
        assert!(error("remote:abc@h:1").contains("is not a worker's ID"));
        assert!(error("remote:@h:1").contains("is not a worker's address"));
    }

    #[test]
    fn both_forms_are_one_key() {
        assert_eq!(canonical_id(HEX).as_deref(), Some(HEX));
        assert_eq!(canonical_id(BASE32).as_deref(), Some(HEX));
        for other in [HEX.to_uppercase(), BASE32.to_lowercase()] {
            assert_eq!(canonical_id(&other).as_deref(), Some(HEX), "{other}");
        }
        assert_eq!(canonical_id(&"A".repeat(52)), Some("0".repeat(64)));
        assert_eq!(
            canonical_id(&format!("{}Q", "7".repeat(51))),
            Some("f".repeat(64))
        );
    }

    #[test]
    fn nothing_else_is_a_key() {
        let bad = [
            String::new(),
            HEX[1..].to_owned(),
            HEX.replace('b', "g"),
            format!("{HEX}0"),
            BASE32.replace('H', "1"),
            // A last bit, and one beyond it.
            format!("{}R", &BASE32[..51]),
            format!("{}ü", &BASE32[..50]),
        ];
        for text in bad {
            assert_eq!(canonical_id(&text), None, "{text}");
        }
    }
}
