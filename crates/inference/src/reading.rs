//! Weights of adapters in host memory, and the thread that reads them.

use std::{
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use loraloom_model::LayerAdapter;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::ServiceError;

/// Files of a PEFT adapter.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// A thread that does one job after another, in the order in which other threads give them. Reading an adapter takes several
/// times its memory, which the allocator keeps for the thread: threads that come and go would hold it many times.
#[derive(Debug)]
pub struct OneThread(Option<ThreadPool>);

impl OneThread {
    /// Starts it.
    pub fn start() -> Self {
        let builder = ThreadPoolBuilder::new()
            .num_threads(1)
            .thread_name(|_| "adapters".to_owned());
        // Without it, a panic ends the process.
        Self(builder.panic_handler(|_| {}).build().ok())
    }

    /// Does `job` after those before it. Drops it if the system had no thread to give.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(thread) = &self.0 {
            thread.spawn(job);
        }
    }
}

/// Reads an adapter of a directory into host memory, and checks that it fits the model.
pub type ReadAdapter = Arc<dyn Fn(&Path) -> Result<Vec<LayerAdapter>, String> + Send + Sync>;

/// Takes the weights of a name, on any thread; `None` if there are none. The request fails if it is dropped.
pub type TakeWeights = Box<dyn FnOnce(Result<Option<FoundWeights>, String>) + Send>;

/// Finds weights that have no name of their own, such as those of `style@live`. Returns at once.
pub type FindWeights = Arc<dyn Fn(&str, TakeWeights) + Send + Sync>;

/// Weights in host memory.
#[derive(Debug)]
pub struct FoundWeights {
    /// Names them: others have another digest.
    pub digest: String,
    /// The weights by layer.
    pub parts: Vec<LayerAdapter>,
}

/// True for names of the states of a run's adapter: `NAME@live`, `NAME@best`, `NAME@last` or `NAME@STEP`.
pub fn is_of_run(name: &str) -> bool {
    let state = name.rsplit_once('@').map(|(_, state)| state);
    state.is_some_and(|state| {
        matches!(state, "live" | "best" | "last") || state.parse::<usize>().is_ok()
    })
}

/// An adapter in host memory.
#[derive(Debug)]
pub struct ReadFiles {
    /// `None` if there are no files.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) digest: String,
    pub(crate) parts: Vec<LayerAdapter>,
}

impl ReadFiles {
    /// Reads a directory.
    ///
    /// # Errors
    /// [`ServiceError::Adapter`] if it holds no adapter for the model, or its files change meanwhile;
    /// [`ServiceError::Failed`] if reading panics, which must not end the answers to others.
    pub fn new(directory: &Path, read: &ReadAdapter) -> Result<Self, ServiceError> {
        let before = digest(directory)?;
        let parts = catch_unwind(AssertUnwindSafe(|| read(directory))).map_err(|_| {
            let directory = directory.display();
            ServiceError::Failed(format!("reading `{directory}` panicked"))
        })?;
        let parts = parts.map_err(ServiceError::Adapter)?;
        if digest(directory)? != before {
            return Err(changed(directory));
        }
        Ok(Self {
            directory: Some(directory.to_owned()),
            digest: before,
            parts,
        })
    }
}

impl From<FoundWeights> for ReadFiles {
    /// Weights without files, which stay in host memory.
    fn from(FoundWeights { digest, parts }: FoundWeights) -> Self {
        Self {
            directory: None,
            digest,
            parts,
        }
    }
}

impl From<ReadFiles> for FoundWeights {
    fn from(files: ReadFiles) -> Self {
        Self {
            digest: files.digest,
            parts: files.parts,
        }
    }
}

/// The first 16 hexadecimal digits of a BLAKE3 digest of an adapter's configuration and weights.
fn digest(directory: &Path) -> Result<String, ServiceError> {
    let mut hasher = blake3::Hasher::new();
    for name in FILES {
        let path = directory.join(name);
        // A pipe would keep all other adapters waiting.
        let open = fs::metadata(&path).and_then(|found| {
            if found.is_file() {
                fs::File::open(&path)
            } else {
                Err(io::Error::other("not a regular file"))
            }
        });
        let copied = open.and_then(|mut file| io::copy(&mut file, &mut hasher));
        copied.map_err(|error| {
            let saves = ["best", "last"].map(|save| directory.join(save));
            let is_whole = |save: &PathBuf| FILES.iter().all(|name| save.join(name).is_file());
            let save = saves.into_iter().find(is_whole);
            let hint = save.map(|save| format!("; did you mean `{}`?", save.display()));
            let (path, hint) = (path.display(), hint.unwrap_or_default());
            ServiceError::Adapter(format!("{path}: {error}{hint}"))
        })?;
    }
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

pub(crate) fn changed(directory: &Path) -> ServiceError {
    let path = directory.display();
    ServiceError::Adapter(format!(
        "the files in `{path}` changed since they were loaded"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::{OneThread, is_of_run};

    #[test]
    fn a_thread_goes_on_after_a_panic() {
        let thread = OneThread::start();
        thread.spawn(|| panic!("as asked"));
        let (done, is_done) = mpsc::channel();
        thread.spawn(move || done.send(()).expect("a receiver"));
        is_done.recv().expect("done");
    }

    #[test]
    fn states_of_a_run_have_their_names() {
        for name in ["a@live", "a@best", "a@last", "a@0", "a@1200", "a@b@live"] {
            assert!(is_of_run(name), "{name}");
        }
        for name in [
            "live",
            "a",
            "a@",
            "a@b",
            "a@live@b",
            "a@-1",
            "me@example.org",
        ] {
            assert!(!is_of_run(name), "{name}");
        }
    }
}
