use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

/// Files are looked at this often.
const EVERY: Duration = Duration::from_secs(1);

/// The files that running tasks were read from, to see when their content changes.
#[derive(Debug, Default)]
pub(crate) struct Files {
    seen: HashMap<PathBuf, Seen>,
    looked: Option<Instant>,
}

#[derive(Debug, PartialEq)]
struct Seen {
    stamp: Option<Stamp>,
    content: Option<blake3::Hash>,
}

type Stamp = (u64, Option<SystemTime>);

impl Files {
    /// Remembers the content of files.
    pub(crate) fn watch(&mut self, files: &[PathBuf]) {
        for path in files {
            if !self.seen.contains_key(path) {
                let stamp = stamp(path);
                let content = content(path);
                self.seen.insert(path.clone(), Seen { stamp, content });
            }
        }
    }

    /// Forgets all files but these.
    pub(crate) fn keep(&mut self, files: impl Fn(&Path) -> bool) {
        self.seen.retain(|path, _| files(path));
    }

    /// The files whose content is another than when they were first seen. Asked again within a second
    /// it is none.
    pub(crate) fn changed(&mut self) -> Vec<PathBuf> {
        if self.looked.is_some_and(|looked| looked.elapsed() < EVERY) {
            return Vec::new();
        }
        self.looked = Some(Instant::now());
        let mut changed = Vec::new();
        for (path, seen) in &mut self.seen {
            let now = stamp(path);
            if now == seen.stamp {
                continue;
            }
            if content(path) == seen.content {
                // Touched, or written anew as it was.
                seen.stamp = now;
            } else {
                changed.push(path.clone());
            }
        }
        changed.sort();
        changed
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()))
}

fn content(path: &Path) -> Option<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(fs::File::open(path).ok()?).ok()?;
    Some(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Files;

    #[test]
    fn only_other_content_is_a_change() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        for name in ["same", "touched", "other", "gone"] {
            fs::write(path(name), name).expect("written");
        }
        let all = ["same", "touched", "other", "gone"].map(path);
        let mut files = Files::default();
        files.watch(&all);
        assert!(files.changed().is_empty());
        files.looked = None;
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
        let touched = fs::File::options().write(true).open(path("touched"));
        touched.expect("opened").set_modified(later).expect("set");
        fs::write(path("other"), "longer than before").expect("written");
        fs::remove_file(path("gone")).expect("removed");
        assert_eq!(files.changed(), [path("gone"), path("other")]);
        assert!(files.changed().is_empty(), "not again within a second");
        files.keep(|kept| kept != path("gone"));
        files.looked = None;
        assert_eq!(files.changed(), [path("other")]);
    }
}
