use std::{
    collections::BTreeMap,
    fs, io,
    mem::replace,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use blake3::Hash;

use super::{bucket::Bucket, error::HttpError};

/// Tenant of requests whose key names none, and of tasks whose configuration names none.
pub(super) const DEFAULT_TENANT: &str = "default";
const ADMIN: &str = "admin";
const REQUESTS: &str = "requests_per_minute";
const WEIGHT: &str = "weight";
const TOKENS: &str = "tokens_per_minute";

/// The keys of a server.
///
/// A file has a key in each line, `KEY [TENANT [admin] [weight=N] [requests_per_minute=N] [tokens_per_minute=N]]`, and comments
/// behind `#`. A key loads and unloads adapters if it is alone in its line, or an `admin`. Tokens are those of
/// prompts and answers.
#[derive(Debug)]
pub struct Keys {
    keys: Vec<(Hash, Arc<Caller>)>,
}

/// Errors of a file of keys. None shows a key.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A line has another form.
    #[error("line {line} of `{}`: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// Nobody could use the server.
    #[error("there is no key in `{}`", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl Keys {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read or has no key, a line of another form, a key that is there twice or is not ASCII, a tenant
    /// with two weights.
    pub fn load(path: &Path) -> Result<Self, KeysError> {
        let text = fs::read_to_string(path).map_err(|source| KeysError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut keys: Vec<(Hash, Arc<Caller>)> = Vec::new();
        let mut weights = BTreeMap::new();
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        for (index, line) in text.lines().enumerate() {
            let error = |reason: String| KeysError::Line {
                path: path.to_owned(),
                line: index + 1,
                reason,
            };
            let mut words = line.split_whitespace();
            let mut words = words.by_ref().take_while(|word| !word.starts_with('#'));
            let Some(key) = words.next() else {
                continue;
            };
            if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                let reason = "the key has a character that a header cannot have: use ASCII";
                return Err(error(reason.to_owned()));
            }
            let digest = blake3::hash(key.as_bytes());
            if keys.iter().any(|(other, _)| *other == digest) {
                return Err(error("the key is there twice".to_owned()));
            }
            let caller = Caller::parse(words).map_err(error)?;
            let weight = *weights
                .entry(caller.tenant.clone())
                .or_insert(caller.weight);
            if weight.total_cmp(&caller.weight).is_ne() {
                let tenant = &caller.tenant;
                let other = caller.weight;
                let reason = format!(
                    "`{tenant}` has `{WEIGHT}={weight}` in a line before, and {other} here: all its keys have one"
                );
                return Err(error(reason));
            }
            keys.push((digest, Arc::new(caller)));
        }
        if keys.is_empty() {
            let path = path.to_owned();
            return Err(KeysError::Empty { path });
        }
        Ok(Self { keys })
    }

    /// Who has a key. The time depends on no key: digests are compared, all of them, in constant time.
    pub(crate) fn find(&self, key: &str) -> Option<Arc<Caller>> {
        let digest = blake3::hash(key.as_bytes());
        let mut found = None;
        for (other, caller) in &self.keys {
            if *other == digest {
                found = Some(caller);
            }
        }
        found.cloned()
    }
}

/// Who sends requests, and how many more.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) tenant: String,
    /// The tenant's part of the service beside those of others.
    pub(crate) weight: f64,
    /// True if it may load and unload adapters.
    pub(crate) is_admin: bool,
    requests: Option<Mutex<Bucket>>,
    tokens: Option<Mutex<Bucket>>,
}

impl Caller {
    /// Everybody, on a server without keys.
    pub(crate) fn anonymous() -> Self {
        Self {
            tenant: DEFAULT_TENANT.to_owned(),
            weight: 1.0,
            is_admin: true,
            requests: None,
            tokens: None,
        }
    }

    /// The words of a line behind the key.
    fn parse<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut caller = Self::anonymous();
        let Some(tenant) = words.next() else {
            return Ok(caller);
        };
        if tenant == ADMIN || tenant.contains('=') {
            return Err(format!("a tenant must be between the key and `{tenant}`"));
        }
        tenant.clone_into(&mut caller.tenant);
        caller.is_admin = false;
        let mut has_weight = false;
        for word in words {
            let limit = match word.split_once('=') {
                None if word == ADMIN => {
                    caller.is_admin = true;
                    continue;
                }
                Some((WEIGHT, weight)) => {
                    let weight = weight
                        .parse()
                        .ok()
                        .filter(|weight| (0.001..=1000.0).contains(weight));
                    let needs = || format!("`{word}` needs a number from 0.001 to 1000");
                    caller.weight = weight.ok_or_else(needs)?;
                    if replace(&mut has_weight, true) {
                        return Err(format!("`{word}` is a second weight"));
                    }
                    continue;
                }
                Some((REQUESTS, count)) => Some((&mut caller.requests, count)),
                Some((TOKENS, count)) => Some((&mut caller.tokens, count)),
                _ => None,
            };
            let Some((limit, count)) = limit else {
                let known = format!("`{ADMIN}`, `{WEIGHT}=N`, `{REQUESTS}=N` or `{TOKENS}=N`");
                return Err(format!("`{word}` is not {known}"));
            };
            let count: u32 = count.parse().unwrap_or(0);
            if count == 0 {
                return Err(format!("`{word}` needs a number of at least 1"));
            }
            if limit.replace(Mutex::new(Bucket::new(count))).is_some() {
                return Err(format!("`{word}` is a second limit"));
            }
        }
        Ok(caller)
    }

    /// Counts a request for text.
    ///
    /// # Errors
    /// [`HttpError::Rate`] if a limit is reached.
    pub(crate) fn admit(&self, now: Instant) -> Result<(), HttpError> {
        for (bucket, unit) in [(&self.tokens, "tokens"), (&self.requests, "requests")] {
            let Some(bucket) = bucket else {
                continue;
            };
            let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
            let wait = bucket.wait(1.0, now);
            if wait > 0 {
                let limit = bucket.per_minute();
                return Err(HttpError::Rate { limit, unit, wait });
            }
            if unit == "requests" {
                bucket.take(1.0);
            }
        }
        Ok(())
    }

    /// Counts tokens of prompts and answers. They may overdraw the limit, because an answer's end is not known at
    /// its start.
    pub(crate) fn count_tokens(&self, count: usize) {
        if let Some(bucket) = &self.tokens {
            let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.take(count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Result<Keys, KeysError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Keys::load(file.path())
    }

    #[test]
    fn lines_have_a_key_a_tenant_and_limits() {
        let text = "\u{feff}first\n# people\nalone\n\nwith team # a comment\nboss team admin tokens_per_minute=5\n\
                    few others weight=2.5 requests_per_minute=2\n";
        let keys = keys(text).unwrap();
        let caller = |key: &str| keys.find(key).unwrap();
        assert!(keys.find("people").is_none() && keys.find("").is_none());
        assert_eq!(caller("first").tenant, "default");
        assert_eq!(caller("alone").tenant, "default");
        assert_eq!(caller("with").tenant, "team");
        let admins = ["alone", "with", "boss", "few"].map(|key| caller(key).is_admin);
        assert_eq!(admins, [true, false, true, false]);
        let weights = ["alone", "few"].map(|key| caller(key).weight.to_string());
        assert_eq!(weights, ["1", "2.5"]);
    }

    #[test]
    fn limits_are_counted() {
        let keys = keys("few team requests_per_minute=2\nshort team tokens_per_minute=10").unwrap();
        let now = Instant::now();
        let few = keys.find("few").unwrap();
        assert!(few.admit(now).is_ok() && few.admit(now).is_ok());
        assert!(matches!(
            few.admit(now),
            Err(HttpError::Rate { wait: 30, .. })
        ));
        let short = keys.find("short").unwrap();
        assert!(short.admit(now).is_ok());
        short.count_tokens(15);
        assert!(matches!(
            short.admit(now),
            Err(HttpError::Rate { wait: 36, .. })
        ));
    }

    #[test]
    fn other_lines_are_refused_without_showing_the_key() {
        for (text, part) in [
            ("secret team frobnicate", "line 1"),
            ("a\nsecret requests_per_minute=5", "line 2"),
            ("secret admin", "a tenant must be between"),
            ("secret team tokens_per_minute=0", "at least 1"),
            ("secret team tokens_per_minute=many", "at least 1"),
            ("secret team weight=0", "from 0.001 to 1000"),
            ("secret team weight=nan", "from 0.001 to 1000"),
            (
                "secret team tokens_per_minute=1 tokens_per_minute=2",
                "a second limit",
            ),
            ("secret team weight=2 weight=2", "a second weight"),
            ("secret\nsecret team", "there twice"),
            (
                "secret team weight=2\nother team",
                "has `weight=2` in a line before",
            ),
            ("se\u{e4}cret", "ASCII"),
            ("secret\0", "ASCII"),
            ("# nobody", "no key"),
        ] {
            let error = keys(text).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
        assert!(matches!(
            Keys::load(Path::new("/nowhere")),
            Err(KeysError::Read { .. })
        ));
    }
}
