use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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

/// How often files are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Notices changes of the tasks' files, in a thread of its own, because reading a large file would delay
/// training. The thread ends when this is dropped, after the file that it is reading.
#[derive(Debug)]
pub(crate) struct Files {
    commands: Sender<WatchCommand>,
    changed: Receiver<(PathBuf, Change)>,
}

/// A file's digest when its task was taken up, and now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) before: String,
    pub(crate) now: String,
}

#[derive(Debug)]
enum WatchCommand {
    Watch(PathBuf, Option<Stamp>),
    KeepOnly(BTreeSet<PathBuf>),
}

impl Files {
    /// Starts without files; `news` is set whenever one has changed.
    pub(crate) fn start(news: Arc<AtomicBool>) -> Self {
        let (commands, received) = channel();
        let (tell, changed) = channel();
        thread::spawn(move || {
            let mut seen = SeenFiles::default();
            let mut look = Instant::now() + CHECK_INTERVAL;
            loop {
                match received.recv_timeout(look.saturating_duration_since(Instant::now())) {
                    Ok(WatchCommand::Watch(path, stamp)) => seen.watch(path, stamp),
                    Ok(WatchCommand::KeepOnly(files)) => seen.keep_only(&files),
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        for changed in seen.take_changed() {
                            if tell.send(changed).is_err() {
                                return;
                            }
                            news.store(true, Ordering::Relaxed);
                        }
                        look = Instant::now() + CHECK_INTERVAL;
                    }
                }
            }
        });
        Self { commands, changed }
    }

    /// Watches files, as they are now.
    pub(crate) fn watch(&self, files: Vec<PathBuf>) {
        for path in files {
            let stamp = stamp(&path);
            self.send(WatchCommand::Watch(path, stamp));
        }
    }

    /// Stops watching all files but these.
    pub(crate) fn keep_only(&self, files: BTreeSet<PathBuf>) {
        self.send(WatchCommand::KeepOnly(files));
    }

    /// Files whose content has changed; each is returned once.
    pub(crate) fn changed(&self) -> BTreeMap<PathBuf, Change> {
        self.changed.try_iter().collect()
    }

    fn send(&self, command: WatchCommand) {
        // The channel is closed only if the thread has panicked; then changes go unnoticed.
        let _ = self.commands.send(command);
    }
}

/// Files, as they were when first seen.
#[derive(Debug, Default)]
struct SeenFiles(HashMap<PathBuf, Seen>);

#[derive(Debug, PartialEq)]
struct Seen {
    stamp: Option<Stamp>,
    content: Option<blake3::Hash>,
    /// The stamp at the last check, if it differed.
    looked_at: Option<Stamp>,
}

type Stamp = (u64, Option<SystemTime>);

impl SeenFiles {
    /// Records the content of a file that had this stamp.
    fn watch(&mut self, path: PathBuf, stamp: Option<Stamp>) {
        self.0.entry(path).or_insert_with_key(|path| {
            let content = content(path);
            // The content of a file that has changed since is unknown.
            let content = content.filter(|_| self::stamp(path) == stamp);
            Seen {
                stamp,
                content,
                looked_at: None,
            }
        });
    }

    fn keep_only(&mut self, files: &BTreeSet<PathBuf>) {
        self.0.retain(|path, _| files.contains(path));
    }

    /// Removes and returns files with changed content. A missing file is not changed; a file that is still being
    /// written, such as a copy that is being restored, is not changed yet.
    fn take_changed(&mut self) -> Vec<(PathBuf, Change)> {
        let mut changed = Vec::new();
        self.0.retain(|path, seen| {
            let stamp = stamp(path);
            if stamp.is_none() || stamp == seen.stamp {
                return true;
            }
            if std::mem::replace(&mut seen.looked_at, stamp) != stamp {
                return true;
            }
            let content = content(path);
            // Touched, rewritten with the same content, or created.
            if content == seen.content || seen.stamp.is_none() {
                *seen = Seen {
                    stamp,
                    content,
                    looked_at: None,
                };
                return true;
            }
            let word = |content: Option<blake3::Hash>| match content {
                Some(hash) => hash.to_hex()[..16].to_owned(),
                None => "unknown".to_owned(),
            };
            let (before, now) = (word(seen.content), word(content));
            changed.push((path.clone(), Change { before, now }));
            false
        });
        changed
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()))
}

/// `None` if there is no file that can be read twice, such as a pipe.
fn content(path: &Path) -> Option<blake3::Hash> {
    fs::metadata(path).ok()?.is_file().then_some(())?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(fs::File::open(path).ok()?).ok()?;
    Some(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::{Change, SeenFiles, stamp};

    /// Changes once writing has ended.
    fn changed(files: &mut SeenFiles) -> Vec<(std::path::PathBuf, Change)> {
        assert!(files.take_changed().is_empty(), "it may still be written");
        files.take_changed()
    }

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
        let hash = |text: &str| blake3::hash(text.as_bytes()).to_hex()[..16].to_owned();
        let change = Change {
            before: hash("other"),
            now: hash("longer than before"),
        };
        assert_eq!(changed(&mut files), [(path("other"), change)]);
        assert!(files.take_changed().is_empty(), "told once");
        // A restored file is compared with its earlier content.
        fs::write(path("gone"), "go").expect("written");
        assert!(files.take_changed().is_empty());
        fs::write(path("gone"), "gone").expect("written");
        assert!(changed(&mut files).is_empty());
        fs::write(path("gone"), "longer than before").expect("written");
        assert_eq!(changed(&mut files).len(), 1);
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
        let changed = changed(&mut files);
        assert_eq!(changed.len(), 1);
        assert_eq!(
            (&changed[0].0, changed[0].1.before.as_str()),
            (&path, "unknown")
        );
    }

    #[test]
    fn what_was_not_there_at_first_is_no_change() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("rows");
        let mut files = SeenFiles::default();
        files.watch(path.clone(), stamp(&path));
        fs::write(&path, "rows").expect("written");
        assert!(changed(&mut files).is_empty());
        fs::write(&path, "other rows").expect("written");
        assert_eq!(changed(&mut files).len(), 1);
    }
}
