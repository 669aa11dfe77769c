//! Names of repositories and of files in them, as `huggingface_hub` writes them.

use std::fmt;

/// Kind of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A model or an adapter.
    Model,
    /// A dataset.
    Dataset,
}

impl Kind {
    /// The word of addresses and folders: `models` or `datasets`.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }

    /// The word of messages.
    pub fn singular(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "dataset",
        }
    }
}

/// A repository at a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// Model or dataset.
    pub kind: Kind,
    /// `organisation/name`.
    pub id: String,
    /// A branch, a tag or a commit; `main` if none is named.
    pub revision: String,
}

/// Files of a dataset: `hf://datasets/org/name@revision/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFiles {
    /// The dataset.
    pub repository: Repository,
    /// The path of a file, or a pattern.
    pub path: String,
}

const MAIN: &str = "main";
/// Characters that a name has at most.
const LONGEST: usize = 96;

impl Repository {
    /// The model that `org/name` or `org/name@revision` names, also with `hf://` before it; `None` for
    /// any other text.
    pub fn model(text: &str) -> Option<Self> {
        let text = text.strip_prefix("hf://").unwrap_or(text);
        let (id, revision) = text.split_once('@').unwrap_or((text, MAIN));
        (is_id(id) && is_revision(revision)).then(|| Self {
            kind: Kind::Model,
            id: id.to_owned(),
            revision: revision.to_owned(),
        })
    }

    /// The name of its folder in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("{}--{}", self.kind.plural(), self.id.replace('/', "--"))
    }

    /// The command that puts it into the cache.
    pub fn download_command(&self) -> String {
        let kind = match self.kind {
            Kind::Model => "",
            Kind::Dataset => " --repo-type dataset",
        };
        let revision = match self.revision.as_str() {
            MAIN => String::new(),
            revision => format!(" --revision {revision}"),
        };
        format!("hf download{kind} {}{revision}", self.id)
    }
}

/// As it is written: without the revision `main`.
impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)?;
        match self.revision.as_str() {
            MAIN => Ok(()),
            revision => write!(f, "@{revision}"),
        }
    }
}

impl HubFiles {
    /// The files that `hf://datasets/org/name/path` names.
    ///
    /// # Errors
    /// A sentence, if the text begins with `hf:` and names no file of a dataset.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let rest = text.strip_prefix("hf:")?;
        let named = rest.strip_prefix("//datasets/").and_then(Self::of_dataset);
        Some(named.ok_or_else(|| {
            format!(
                "`{text}` is not the path of a dataset file: write hf://datasets/ORG/NAME/FILE, or \
                 hf://datasets/ORG/NAME@REVISION/FILE"
            )
        }))
    }

    fn of_dataset(text: &str) -> Option<Self> {
        let (organisation, rest) = text.split_once('/')?;
        let (name, rest) = rest.split_at(rest.find(['/', '@'])?);
        let id = format!("{organisation}/{name}");
        let (revision, path) = match rest.strip_prefix('@') {
            None => (MAIN.to_owned(), rest.strip_prefix('/')?),
            Some(rest) => {
                // A slash is part of these revisions alone; in others it is written %2F.
                let special = ["refs/pr/", "refs/convert/"];
                let special = special.iter().find(|start| rest.starts_with(**start));
                let from = special.map_or(0, |start| start.len());
                let (revision, path) = rest.split_at(from + rest[from..].find('/')?);
                (revision.replace("%2F", "/"), &path[1..])
            }
        };
        let is_named = is_id(&id) && is_revision(&revision) && !path.is_empty();
        let stays_inside = path.split('/').all(|part| !part.is_empty() && part != "..");
        (is_named && stays_inside).then(|| Self {
            repository: Repository {
                kind: Kind::Dataset,
                id,
                revision,
            },
            path: path.to_owned(),
        })
    }
}

impl fmt::Display for HubFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf://datasets/{}/{}", self.repository, self.path)
    }
}

/// True of `org/name` as the Hub allows it.
fn is_id(text: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !part.is_empty()
            && part.bytes().all(allowed)
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
    };
    let mut parts = text.split('/');
    let is_pair = parts.by_ref().take(2).filter(|part| is_part(part)).count() == 2;
    is_pair
        && parts.next().is_none()
        && text.len() <= LONGEST
        && !text.contains("--")
        && !text.contains("..")
}

/// True if it can name a folder below `refs` or `snapshots`, and nothing outside them.
fn is_revision(text: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    text.split('/').all(is_part) && !text.contains(['\\', '\0'])
}

#[cfg(test)]
mod tests {
    use super::{HubFiles, Repository};

    #[test]
    fn models_have_an_organisation_a_name_and_perhaps_a_revision() {
        for (text, id, revision) in [
            ("org/name", "org/name", "main"),
            ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main"),
            ("org/name@v1.0", "org/name", "v1.0"),
            ("hf://org/name@refs/pr/3", "org/name", "refs/pr/3"),
        ] {
            let model = Repository::model(text).unwrap();
            assert_eq!((&*model.id, &*model.revision), (id, revision), "{text}");
        }
        for text in [
            "name",
            "a/b/c",
            "/a/b",
            "./a",
            "../a",
            "a/",
            "/a",
            "a/..",
            "a/.b",
            "a/-b",
            "a/b-",
            "~/a",
            "a b/c",
            "a/b@",
            "a/b@../../c",
            "a/b@/etc",
            "a/b@c\\d",
            "a--b/c",
            r"C:\a",
            "C:/a",
            "",
            "a/b.",
            "https://huggingface.co/a/b",
        ] {
            assert_eq!(Repository::model(text), None, "{text}");
        }
        let long = |length: usize| format!("a/{}", "b".repeat(length - 2));
        assert_eq!(Repository::model(&long(97)), None);
        assert!(Repository::model(&long(96)).is_some());
    }

    #[test]
    fn files_of_datasets_are_written_as_by_huggingface_hub() {
        for (text, revision, path) in [
            ("hf://datasets/org/name/a.jsonl", "main", "a.jsonl"),
            (
                "hf://datasets/org/name@v1/data/*.jsonl",
                "v1",
                "data/*.jsonl",
            ),
            (
                "hf://datasets/org/name@refs/pr/3/a.json",
                "refs/pr/3",
                "a.json",
            ),
            (
                "hf://datasets/org/name@my%2Fbranch/a.json",
                "my/branch",
                "a.json",
            ),
            ("hf://datasets/org/name/a@b.json", "main", "a@b.json"),
        ] {
            let files = HubFiles::parse(text).unwrap().unwrap();
            let found = (
                &*files.repository.id,
                &*files.repository.revision,
                &*files.path,
            );
            assert_eq!(found, ("org/name", revision, path), "{text}");
        }
        for text in [
            "hf://org/name/a.jsonl",
            "hf://datasets/org/name",
            "hf://datasets/org/name/",
            "hf://datasets/org",
            "hf://datasets/org/name@v1",
            "hf://datasets/org/name@/a",
            "hf://datasets/org/name@../a",
            "hf://datasets/org/name/../../a",
            "hf://datasets/org/name//etc/passwd",
            "hf:datasets/org/name/a",
        ] {
            let problem = HubFiles::parse(text).unwrap().unwrap_err();
            assert!(problem.contains("hf://datasets/ORG/NAME/FILE"), "{problem}");
        }
        assert!(HubFiles::parse("data/a.jsonl").is_none());
    }
}
