use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Files are looked at this often.
const EVERY: Duration = Duration::from_secs(1);

/// Looks whether the files that tasks are trained from change, in a thread of its own: reading a large
/// one must not hold up who trains. The thread ends with this, or after what it reads then.
#[derive(Debug)]
pub(crate) struct Files {
    asked: Sender<Asked>,
    changed: Receiver<PathBuf>,
}

#[derive(Debug)]
enum Asked {
    Watch(PathBuf, Option<Stamp>),
    KeepOnly(BTreeSet<PathBuf>),
}

impl Files {
    /// No files yet; `news` is set whenever one has changed.
    pub(crate) fn start(news: Arc<AtomicBool>) -> Self {
        let (asked, asks) = channel();
        let (tell, changed) = channel();
        thread::spawn(move || {
            let mut seen = SeenFiles::default();
            let mut look = Instant::now() + EVERY;
            loop {
                match asks.recv_timeout(look.saturating_duration_since(Instant::now())) {
                    Ok(Asked::Watch(path, stamp)) => seen.watch(path, stamp),
                    Ok(Asked::KeepOnly(files)) => seen.keep_only(&files),
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        for path in seen.take_changed() {
                            if tell.send(path).is_err() {
                                return;
                            }
                            news.store(true, Ordering::Relaxed);
                        }
                        look = Instant::now() + EVERY;
                    }
                }
            }
        });
        Self { asked, changed }
    }

    /// Remembers files as they are now.
    pub(crate) fn watch(&self, files: Vec<PathBuf>) {
        for path in files {
            let stamp = stamp(&path);
            self.ask(Asked::Watch(path, stamp));
        }
    }

    /// Forgets all files but these.
    pub(crate) fn keep_only(&self, files: BTreeSet<PathBuf>) {
        self.ask(Asked::KeepOnly(files));
    }

    /// Files whose content has become another; each is told once.
    pub(crate) fn changed(&self) -> BTreeSet<PathBuf> {
        self.changed.try_iter().collect()
    }

    fn ask(&self, asked: Asked) {
        // The thread ends before this does only by a panic; then no change is noticed any more, and
        // nothing else is lost.
        let _ = self.asked.send(asked);
    }
}

/// Files, and what they were when they were first seen.
#[derive(Debug, Default)]
struct SeenFiles(HashMap<PathBuf, Seen>);

#[derive(Debug, PartialEq)]
struct Seen {
    stamp: Option<Stamp>,
    content: Option<blake3::Hash>,
}

type Stamp = (u64, Option<SystemTime>);

impl SeenFiles {
    /// Remembers the content of a file that had this stamp.
    fn watch(&mut self, path: PathBuf, stamp: Option<Stamp>) {
        self.0.entry(path).or_insert_with_key(|path| {
            let content = content(path);
            // Of a file that has changed meanwhile nobody knows what it was.
            let content = content.filter(|_| self::stamp(path) == stamp);
            Seen { stamp, content }
        });
    }

    fn keep_only(&mut self, files: &BTreeSet<PathBuf>) {
        self.0.retain(|path, _| files.contains(path));
    }

    /// Forgets those whose content is another, and returns them.
    fn take_changed(&mut self) -> Vec<PathBuf> {
        let changed = self.0.extract_if(|path, seen| {
            let now = stamp(path);
            if now == seen.stamp {
                return false;
            }
            // Touched, or written anew as it was.
            let same = content(path) == seen.content;
            if same {
                seen.stamp = now;
            }
            !same
        });
        changed.map(|(path, _)| path).collect()
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()))
}

/// `None` where there is nothing that can be read twice: no file, or a pipe.
fn content(path: &Path) -> Option<blake3::Hash> {
    fs::metadata(path).ok()?.is_file().then_some(())?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(fs::File::open(path).ok()?).ok()?;
    Some(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, time::Duration};

    use super::{SeenFiles, stamp};

    #[test]
    fn only_other_content_is_a_change() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let names = ["same", "touched", "other", "gone", "forgotten"];
        let mut files = SeenFiles::default();
        for name in names {
            fs::write(path(name), name).expect("written");
            files.watch(path(name), stamp(&path(name)));
        }
        assert!(files.take_changed().is_empty());
        let later = std::time::SystemTime::now() + Duration::from_secs(9);
        let touched = fs::File::options().write(true).open(path("touched"));
        touched.expect("opened").set_modified(later).expect("set");
        for name in ["other", "forgotten"] {
            fs::write(path(name), "longer than before").expect("written");
        }
        fs::remove_file(path("gone")).expect("removed");
        files.keep_only(&["same", "touched", "other", "gone"].map(path).into());
        let changed: BTreeSet<_> = files.take_changed().into_iter().collect();
        assert_eq!(changed, [path("gone"), path("other")].into());
        assert!(files.take_changed().is_empty(), "told once");
    }

    #[test]
    fn what_changes_before_it_is_looked_at_is_a_change() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("rows");
        fs::write(&path, "before").expect("written");
        let before = stamp(&path);
        fs::write(&path, "longer than before").expect("written");
        let mut files = SeenFiles::default();
        files.watch(path.clone(), before);
        assert_eq!(files.take_changed(), [path]);
    }
}
