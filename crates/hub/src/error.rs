//! Errors of downloads.

use std::{io, path::PathBuf};

/// An error of a download.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// `HF_ENDPOINT` is no address.
    #[error("HF_ENDPOINT = `{0}` is not an address: it begins with http:// or https://")]
    Endpoint(String),
    /// The server cannot be reached, or the connection broke.
    #[error("cannot download {address}: {source}")]
    Network {
        /// The address of the request.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The server refused.
    #[error("{address} returned {status}{}", message.as_deref().map_or_else(String::new, |text| format!(": {text}")))]
    Status {
        /// The address of the request.
        address: String,
        /// The status of HTTP.
        status: u16,
        /// The server's reason.
        message: Option<String>,
    },
    /// An answer that is not that of a Hub.
    #[error("{address}: {reason}")]
    Answer {
        /// The address of the request.
        address: String,
        /// The problem.
        reason: String,
    },
    /// The repository has none of the files.
    #[error("`{0}` on the Hub does not have these files")]
    NoFiles(String),
    /// The cache cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Path of the file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl HubError {
    /// Advice, if known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Status {
                status: 401 | 403, ..
            } => Some(
                "the name is wrong, or the repository is private or gated: accept its terms on its \
                 page, and set a token with HF_TOKEN or `hf auth login`",
            ),
            Self::Status { status: 404, .. } => {
                Some("check the name, the revision and the kind of repository")
            }
            Self::Network { .. } => Some(
                "run the command again to resume; set HF_ENDPOINT for another server, SSL_CERT_FILE \
                 for other certificates",
            ),
            _ => None,
        }
    }
}
