//! Downloads into the cache, as `huggingface_hub` lays it out.

use std::{
    env,
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    Cache, HubError, Kind, Repository,
    http::{Address, Answer, request},
};

const ENDPOINT: &str = "https://huggingface.co";
const MOST_REDIRECTIONS: usize = 8;

/// Progress of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Downloaded<'a> {
    /// The file.
    pub file: &'a str,
    /// Bytes that exist, including those of an earlier download.
    pub bytes: u64,
    /// Bytes of the whole file.
    pub total: u64,
}

/// A server with repositories.
#[derive(Debug, Clone)]
pub struct Hub {
    endpoint: String,
    token: Option<String>,
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// A file of a commit, as the server describes it.
struct Remote {
    address: Address,
    etag: String,
    size: u64,
}

impl Hub {
    /// A server, and the token that it receives.
    pub fn new(endpoint: &str, token: Option<String>) -> Self {
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
        }
    }

    /// The server that `huggingface_hub` uses with this environment; `None` in offline mode.
    pub fn of_environment() -> Option<Self> {
        let set = |name: &str| env::var(name).ok().filter(|text| !text.trim().is_empty());
        let is_on = |name: &str| {
            let text = set(name).unwrap_or_default().to_ascii_uppercase();
            ["1", "ON", "YES", "TRUE"].contains(&&*text)
        };
        if is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE") {
            return None;
        }
        let file = set("HF_TOKEN_PATH").map(PathBuf::from);
        let file = file.or_else(|| Some(crate::cache::home()?.join("token")));
        let token = set("HF_TOKEN").or_else(|| fs::read_to_string(file?).ok());
        let token = token.map(|token| token.trim().to_owned());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        Some(Self::new(
            &endpoint,
            token.filter(|token| !token.is_empty()),
        ))
    }

    /// The server's address.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// True if the server receives a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Downloads the files of a repository that `is_wanted` selects by their path and that the cache lacks. Continues
    /// interrupted downloads. Returns the folder of the commit.
    ///
    /// # Errors
    /// A server that cannot be reached or refuses, no matching file, a cache that cannot be written.
    pub fn download(
        &self,
        cache: &Cache,
        repository: &Repository,
        is_wanted: &dyn Fn(&str) -> bool,
        progress: &mut dyn FnMut(Downloaded<'_>),
    ) -> Result<PathBuf, HubError> {
        let info = self.info(repository)?;
        let folder = cache.folder.join(repository.folder());
        let snapshot = folder.join("snapshots").join(&info.sha);
        let names = info
            .siblings
            .iter()
            .map(|sibling| sibling.rfilename.as_str());
        let mut names: Vec<&str> = names
            .filter(|name| stays_inside(name) && is_wanted(name))
            .collect();
        // These files come last: without them the cache treats a commit as incomplete, and the download continues.
        names.sort_by_key(|name| ["config.json", "adapter_config.json"].contains(name));
        if names.is_empty() {
            return Err(HubError::NoFiles(repository.to_string()));
        }
        for name in names {
            let path = snapshot.join(name);
            if path.exists() {
                continue;
            }
            let remote = self.describe(repository, &info.sha, name)?;
            let blob = folder.join("blobs").join(&remote.etag);
            if !blob.exists() {
                let report = &mut |bytes| {
                    progress(Downloaded {
                        file: name,
                        bytes,
                        total: remote.size,
                    });
                };
                self.fetch(&remote, &blob, report)?;
            }
            link(&blob, &path, name).map_err(|source| HubError::Write { path, source })?;
        }
        if repository.revision != info.sha {
            let path = folder.join("refs").join(&repository.revision);
            let written = parent(&path).and_then(|()| fs::write(&path, &info.sha));
            written.map_err(|source| HubError::Write { path, source })?;
        }
        Ok(snapshot)
    }

    fn info(&self, repository: &Repository) -> Result<Info, HubError> {
        let text = format!(
            "{}/api/{}/{}/revision/{}",
            self.endpoint,
            repository.kind.plural(),
            repository.id,
            encoded(&repository.revision, "")
        );
        let mut answer = self.follow("GET", self.address(&text)?, &text, &[])?;
        let mut body = Vec::new();
        let read = answer.read_to_end(&mut body);
        read.map_err(|source| network(&text, source))?;
        let info: Info = serde_json::from_slice(&body).map_err(|error| HubError::Answer {
            address: text.clone(),
            reason: format!("unexpected response of the Hub: {error}"),
        })?;
        let is_hex = info.sha.bytes().all(|byte| byte.is_ascii_hexdigit());
        if info.sha.is_empty() || !is_hex {
            let reason = format!("`{}` is not a commit", info.sha);
            return Err(HubError::Answer {
                address: text,
                reason,
            });
        }
        Ok(info)
    }

    /// Requests a file's head: the server's answer has the blob's name, and that of a redirection's target does not.
    fn describe(&self, repository: &Repository, sha: &str, name: &str) -> Result<Remote, HubError> {
        let kind = match repository.kind {
            Kind::Model => "",
            Kind::Dataset => "datasets/",
        };
        let name = encoded(name, "/");
        let text = format!(
            "{}/{kind}{}/resolve/{sha}/{name}",
            self.endpoint, repository.id
        );
        let mut address = self.address(&text)?;
        for _ in 0..MOST_REDIRECTIONS {
            let answer = self.ask("HEAD", &address, &text, &[])?;
            let header = |linked, plain| answer.header(linked).or_else(|| answer.header(plain));
            let etag = header("x-linked-etag", "etag").unwrap_or_default();
            let etag = etag.trim_start_matches("W/").trim_matches('"').to_owned();
            let size = header("x-linked-size", "content-length").and_then(|text| text.parse().ok());
            let location = answer
                .header("location")
                .filter(|_| is_redirection(answer.status));
            // A renamed repository redirects to a path of the same server.
            if let Some(next) = location.filter(|location| location.starts_with('/')) {
                address = address.follow(next).ok_or_else(|| astray(&text, next))?;
                continue;
            }
            let is_name = !etag.is_empty()
                && etag
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
            let (true, Some(size)) = (is_name, size) else {
                let reason = "the response has no ETag or no size".to_owned();
                return Err(HubError::Answer {
                    address: text,
                    reason,
                });
            };
            return Ok(Remote {
                address,
                etag,
                size,
            });
        }
        Err(astray(&text, "too many redirections"))
    }

    /// Writes a blob. Its partial file is beside it until it is complete, and is continued.
    fn fetch(
        &self,
        remote: &Remote,
        blob: &Path,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let mut part = blob.as_os_str().to_owned();
        part.push(".incomplete");
        let part = PathBuf::from(part);
        let cannot_write = |source| HubError::Write {
            path: part.clone(),
            source,
        };
        parent(&part).map_err(cannot_write)?;
        let opened = OpenOptions::new().append(true).create(true).open(&part);
        let mut file = opened.map_err(cannot_write)?;
        // Another process may be downloading it.
        file.lock().map_err(cannot_write)?;
        if blob.exists() {
            return Ok(());
        }
        let text = format!("{} of {}", remote.etag, remote.address.host);
        let mut bytes = file.metadata().map_err(cannot_write)?.len();
        if bytes > remote.size {
            file.set_len(0).map_err(cannot_write)?;
            bytes = 0;
        }
        if bytes < remote.size {
            let range = [("Range", format!("bytes={bytes}-"))];
            let headers = if bytes > 0 { &range[..] } else { &[] };
            let mut answer = self.follow("GET", remote.address.clone(), &text, headers)?;
            if answer.status != 206 && bytes > 0 {
                file.set_len(0).map_err(cannot_write)?;
                bytes = 0;
            }
            let mut buffer = vec![0; 1 << 16];
            loop {
                report(bytes);
                let read = answer
                    .read(&mut buffer)
                    .map_err(|source| network(&text, source))?;
                if read == 0 {
                    break;
                }
                file.write_all(&buffer[..read]).map_err(cannot_write)?;
                bytes += read as u64;
            }
        }
        if bytes != remote.size {
            fs::remove_file(&part).map_err(cannot_write)?;
            let reason = format!("received {bytes} bytes instead of {}", remote.size);
            return Err(HubError::Answer {
                address: text,
                reason,
            });
        }
        file.sync_all().map_err(cannot_write)?;
        fs::rename(&part, blob).map_err(cannot_write)
    }

    /// Sends a request and follows redirections.
    fn follow(
        &self,
        method: &str,
        mut address: Address,
        text: &str,
        headers: &[(&str, String)],
    ) -> Result<Answer, HubError> {
        for _ in 0..MOST_REDIRECTIONS {
            let answer = self.ask(method, &address, text, headers)?;
            if !is_redirection(answer.status) {
                return Ok(answer);
            }
            let next = answer.header("location").unwrap_or_default();
            address = address.follow(next).ok_or_else(|| astray(text, next))?;
        }
        Err(astray(text, "too many redirections"))
    }

    /// Sends one request. Only the endpoint receives the token.
    fn ask(
        &self,
        method: &str,
        address: &Address,
        text: &str,
        headers: &[(&str, String)],
    ) -> Result<Answer, HubError> {
        let mut headers = headers.to_vec();
        if let Some(token) = &self.token
            && address.is_same_host(&self.address(&self.endpoint)?)
        {
            headers.push(("Authorization", format!("Bearer {token}")));
        }
        let answer = request(method, address, &headers).map_err(|source| network(text, source))?;
        if answer.status < 400 {
            return Ok(answer);
        }
        Err(HubError::Status {
            address: text.to_owned(),
            status: answer.status,
            message: answer.header("x-error-message").map(str::to_owned),
        })
    }

    fn address(&self, text: &str) -> Result<Address, HubError> {
        Address::parse(text).ok_or_else(|| HubError::Endpoint(self.endpoint.clone()))
    }
}

/// True of the files of a model or adapter that are used here.
pub fn is_model_file(name: &str) -> bool {
    let is_safetensors =
        name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    // Weights in Mistral's own form, in addition to those of transformers.
    let is_other = name.starts_with("consolidated") || name.contains('/');
    let known = [
        "config.json",
        "generation_config.json",
        "adapter_config.json",
        "special_tokens_map.json",
    ];
    let begins = ["tokenizer", "chat_template"];
    !is_other
        && (is_safetensors
            || known.contains(&name)
            || begins.iter().any(|start| name.starts_with(start)))
}

fn is_redirection(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

fn network(text: &str, source: io::Error) -> HubError {
    HubError::Network {
        address: text.to_owned(),
        source,
    }
}

fn astray(text: &str, location: &str) -> HubError {
    HubError::Answer {
        address: text.to_owned(),
        reason: format!("invalid redirection: `{location}`"),
    }
}

/// True of a name that is a path below a folder.
fn stays_inside(name: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    name.split('/').all(is_part) && !name.contains(['\\', ':', '\0'])
}

fn hex(digit: u8) -> char {
    char::from(b"0123456789ABCDEF"[usize::from(digit)])
}

/// Percent-encodes text for an address.
fn encoded(text: &str, also: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        let char = char::from(byte);
        if byte.is_ascii_alphanumeric() || "-_.~".contains(char) || also.contains(char) {
            encoded.push(char);
        } else {
            encoded.extend(['%', hex(byte >> 4), hex(byte & 15)]);
        }
    }
    encoded
}

fn parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Puts a blob at its path in a snapshot: as a link, or as the file itself on systems without links.
fn link(blob: &Path, path: &Path, name: &str) -> io::Result<()> {
    parent(path)?;
    // A broken link may exist.
    let _ = fs::remove_file(path);
    #[cfg(unix)]
    {
        let up = "../".repeat(name.split('/').count() + 1);
        let file = blob.file_name().unwrap_or_default();
        std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(file), path)
    }
    #[cfg(not(unix))]
    {
        let _ = name;
        fs::rename(blob, path)
    }
}
