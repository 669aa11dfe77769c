//! Adapters as they are in a run, for a thread that answers requests beside it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
};

use loraloom_inference::{
    FindWeights, FoundWeights, Neighbour, OneThread, ReadAdapter, ReadFiles, TakeWeights,
};
use serde_json::Value;

use crate::{
    SavedRun,
    adapter::{ModelAdapter, kept_on_host},
    error::Result,
    run_directory::{self, EVENTS_FILE},
    tasks::{Placement, State},
};

/// Most steps that an error lists.
const NEWEST: usize = 8;

/// Asks a run for copies of its adapters.
#[derive(Debug, Clone)]
pub struct LiveAdapters {
    asks: Sender<LiveAsk>,
    /// Ends a window of iterations.
    news: Arc<AtomicBool>,
}

/// Receives requests for copies of a run's adapters.
#[derive(Debug)]
pub struct LiveAsks {
    asks: Receiver<LiveAsk>,
    neighbour: Arc<Neighbour>,
}

struct LiveAsk {
    adapter: String,
    take: Box<dyn FnOnce(Copied) + Send>,
}

/// `None` for an adapter that the run does not train.
type Copied = Result<Option<LiveAdapter>, String>;

/// An adapter in host memory after its last optimizer step.
#[derive(Debug, Clone)]
struct LiveAdapter {
    step: usize,
    parts: ModelAdapter,
}

impl LiveAsks {
    /// The two ends. `news` is the run's signal of that name; the run is `neighbour`.
    pub fn channel(news: Arc<AtomicBool>, neighbour: Arc<Neighbour>) -> (LiveAdapters, Self) {
        let (sender, asks) = mpsc::channel();
        let live = LiveAdapters { asks: sender, news };
        (live, Self { asks, neighbour })
    }

    pub(crate) fn neighbour(&self) -> &Neighbour {
        &self.neighbour
    }

    /// Answers between two iterations. Requests for one adapter share a copy, and get the error if it fails.
    pub(crate) fn answer(&self, placed: &Placement) {
        self.answer_with(|adapter| Self::copy(placed, adapter));
    }

    fn answer_with(&self, mut copy: impl FnMut(&str) -> Copied) {
        let mut copies = BTreeMap::new();
        while let Ok(LiveAsk { adapter, take }) = self.asks.try_recv() {
            let copied = copies.entry(adapter);
            let copied = copied.or_insert_with_key(|adapter| copy(adapter));
            take(copied.clone());
        }
    }

    fn copy(placed: &Placement, adapter: &str) -> Copied {
        let mut tasks = placed.tasks.live();
        let Some(task) = tasks.find(|task| task.config.name == adapter) else {
            return Ok(None);
        };
        let parts = match &task.state {
            State::Waiting => return Err("it has not begun to train".to_owned()),
            State::Parked(parked) => parked.clone(),
            State::Running => placed.copy(task.id).map_err(|error| error.to_string())?,
        };
        let step = task.steps;
        Ok(Some(LiveAdapter { step, parts }))
    }
}

impl LiveAdapters {
    /// Calls `take` between two iterations. Drops it if the run has ended.
    fn ask(&self, adapter: String, take: impl FnOnce(Copied) + Send + 'static) {
        let take = Box::new(take);
        let _ = self.asks.send(LiveAsk { adapter, take });
        self.news.store(true, Ordering::Relaxed);
    }
}

/// Adapters in the files of a run.
struct SavedAdapters {
    directory: PathBuf,
    read: ReadAdapter,
}

impl SavedAdapters {
    fn kept(&self, adapter: &str, kept: &str) -> Result<FoundWeights, String> {
        let path = run_directory::adapter(&self.directory, adapter, kept);
        let files = ReadFiles::new(&path, &self.read);
        files
            .map(FoundWeights::from)
            .map_err(|error| error.to_string())
    }

    fn last(&self, adapter: &str) -> Result<Option<FoundWeights>, String> {
        let is_saved = run_directory::adapter(&self.directory, adapter, "last").is_dir();
        is_saved.then(|| self.kept(adapter, "last")).transpose()
    }

    fn after_step(&self, adapter: &str, step: usize) -> Result<Option<FoundWeights>, String> {
        let mut saved = BTreeSet::new();
        let in_checkpoint = in_checkpoint(&self.directory, adapter, step, &mut saved);
        if let Some(parts) = in_checkpoint.map_err(|error| error.to_string())? {
            return Ok(Some(after_step(adapter, step, parts)));
        }
        let kept = kept_steps(&self.directory, adapter);
        let of_step = kept.iter().filter(|(_, saved)| *saved == step);
        let mut of_step = of_step.map(|(kept, _)| self.kept(adapter, kept));
        if let Some(first) = of_step.next() {
            // Of two saves of a step one may be broken.
            let found = first.or_else(|error| of_step.next().unwrap_or(Err(error)));
            return found.map(Some);
        }
        saved.extend(kept.iter().map(|(_, step)| step));
        if saved.is_empty() {
            return Ok(None);
        }
        let newest: Vec<String> = saved
            .iter()
            .rev()
            .take(NEWEST)
            .map(usize::to_string)
            .collect();
        let newest = newest.join(", ");
        Err(format!(
            "`{adapter}` has saves of these steps, the newest first: {newest}"
        ))
    }
}

/// Finds `NAME@live`, the weights after the last optimizer step, and `NAME@STEP`, those of a save that is still in the run's
/// directory. `read` reads saved adapters.
pub fn find_weights(
    directory: PathBuf,
    read: ReadAdapter,
    live: Option<LiveAdapters>,
) -> FindWeights {
    let saved = Arc::new(SavedAdapters { directory, read });
    let reader = Arc::new(OneThread::start());
    Arc::new(move |name: &str, take: TakeWeights| {
        let (saved, reader) = (Arc::clone(&saved), Arc::clone(&reader));
        let Some((adapter, which)) = name.rsplit_once('@').filter(|(name, _)| is_name(name)) else {
            return take(Ok(None));
        };
        let adapter = adapter.to_owned();
        if which == "live" {
            let asked = adapter.clone();
            let then = move |copied| match copied {
                Ok(Some(LiveAdapter { step, parts })) => {
                    take(Ok(Some(after_step(&adapter, step, parts))));
                }
                // Its last step was saved.
                Ok(None) => reader.spawn(move || take(saved.last(&adapter))),
                Err(error) => take(Err(error)),
            };
            match &live {
                Some(live) => live.ask(asked, then),
                None => then(Ok(None)),
            }
        } else if let Some(step) = step(which) {
            reader.spawn(move || take(saved.after_step(&adapter, step)));
        } else {
            take(Ok(None));
        }
    })
}

/// A step as it is printed: not `007` or `+7`.
fn step(text: &str) -> Option<usize> {
    let step: Option<usize> = text.parse().ok();
    step.filter(|step| step.to_string() == text)
}

/// True for the name of a directory in a directory: a request may not read elsewhere.
fn is_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_normal = |part| matches!(part, Component::Normal(part) if part == name);
    parts.next().is_some_and(is_normal) && parts.next().is_none()
}

/// A run is at a step once, so that the two name weights.
fn after_step(adapter: &str, step: usize, parts: ModelAdapter) -> FoundWeights {
    FoundWeights {
        digest: format!("{adapter}@{step}"),
        parts,
    }
}

/// An adapter after a step, if a checkpoint of the run has it; else adds the steps after which checkpoints have it to
/// `others`.
fn in_checkpoint(
    directory: &Path,
    name: &str,
    step: usize,
    others: &mut BTreeSet<usize>,
) -> Result<Option<ModelAdapter>> {
    for saved in SavedRun::all(directory)? {
        let mut tasks = saved.record().tasks.iter();
        let task = tasks.find(|task| task.name == name && !task.modules.is_empty());
        let Some(saved_step) = task.map(|task| task.step) else {
            continue;
        };
        if saved_step == step
            && let Some(adapter) = saved.task(name)?.and_then(|task| task.adapter)
        {
            return Ok(Some(kept_on_host(adapter)?));
        }
        others.insert(saved_step);
    }
    Ok(None)
}

/// The steps after which an adapter's `last` and `best` were saved.
fn kept_steps(directory: &Path, name: &str) -> Vec<(&'static str, usize)> {
    let mut kept = vec!["last", "best"];
    kept.retain(|kept| run_directory::adapter(directory, name, kept).is_dir());
    if kept.is_empty() {
        // Events of a long run take a while to read.
        return Vec::new();
    }
    let events = fs::read_to_string(directory.join(EVENTS_FILE)).unwrap_or_default();
    let saved = events.lines().rev().filter_map(|line| {
        let is_save = line.contains(r#""event":"checkpoint""#);
        let event: Value = serde_json::from_str(line).ok().filter(|_| is_save)?;
        let path = event["path"].as_str()?.rsplit_once('/')?.1.to_owned();
        (event["adapter"] == name).then_some((path, event["step"].as_u64()?))
    });
    let saved: Vec<(String, u64)> = saved.collect();
    let newest = |kept: &'static str| {
        let (_, step) = saved.iter().find(|(path, _)| path == kept)?;
        Some((kept, *step as usize))
    };
    kept.into_iter().filter_map(newest).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Mutex,
        thread::{self, ThreadId},
    };

    use serde_json::json;

    use super::*;

    type Found = Result<Option<FoundWeights>, String>;

    /// A run with an adapter that was saved.
    fn run(here: &Path) -> PathBuf {
        let run = here.join("run");
        for adapter in ["run/adapters/inside", "outside"] {
            let kept = here.join(adapter).join("last");
            fs::create_dir_all(&kept).expect("created");
            for file in ["adapter_config.json", "adapter_model.safetensors"] {
                fs::write(kept.join(file), "").expect("written");
            }
        }
        run
    }

    fn begin(find: &FindWeights, name: &str) -> Receiver<Found> {
        let (send, found) = mpsc::channel();
        find(name, Box::new(move |found| drop(send.send(found))));
        found
    }

    fn finds(find: &FindWeights, name: &str) -> bool {
        let found = begin(find, name).recv().expect("an answer");
        found.expect("a run").is_some()
    }

    #[test]
    fn requests_read_nothing_outside_the_run() {
        let here = tempfile::tempdir().expect("a directory");
        let find = find_weights(run(here.path()), Arc::new(|_: &_| Ok(Vec::new())), None);
        assert!(finds(&find, "inside@live"));
        let outside = here.path().join("outside");
        for name in [
            "../../outside",
            "inside/../../../outside",
            "./inside",
            "inside/",
            "..",
            "",
        ] {
            assert!(!finds(&find, &format!("{name}@live")), "{name}");
        }
        assert!(!finds(&find, &format!("{}@live", outside.display())));
    }

    #[test]
    fn saves_are_read_by_one_other_thread() {
        let here = tempfile::tempdir().expect("a directory");
        let run = run(here.path());
        let saved =
            r#"{"event":"checkpoint","adapter":"inside","step":7,"path":"adapters/inside/last"}"#;
        fs::write(run.join(EVENTS_FILE), saved).expect("written");
        let threads: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
        let seen = Arc::clone(&threads);
        let read: ReadAdapter = Arc::new(move |_: &Path| {
            seen.lock().expect("threads").push(thread::current().id());
            Ok(Vec::new())
        });
        let (asks, live) = LiveAsks::channel(Arc::default(), Arc::new(Neighbour::new(0.5)));
        let find = find_weights(run, read, Some(asks));
        for _ in 0..9 {
            assert!(finds(&find, "inside@7"));
            let found = begin(&find, "inside@live");
            live.answer_with(|_| Ok(None));
            let found = found.recv().expect("an answer").expect("a run");
            assert!(found.is_some());
        }
        let threads = threads.lock().expect("threads");
        assert_eq!(threads.len(), 18);
        assert!(threads.iter().all(|thread| *thread == threads[0]));
        assert_ne!(threads[0], thread::current().id());
    }

    #[test]
    fn steps_are_named_as_they_are_printed() {
        let here = tempfile::tempdir().expect("a directory");
        let run = run(here.path());
        let adapters = run.join("adapters");
        let copy = |from: &str, to: &str| {
            fs::create_dir_all(adapters.join(to)).expect("created");
            for file in ["adapter_config.json", "adapter_model.safetensors"] {
                fs::copy(adapters.join(from).join(file), adapters.join(to).join(file))
                    .expect("copied");
            }
        };
        copy("inside/last", "inside/best");
        for copied in ["cleared/last", "twice/last", "twice/best"] {
            copy("inside/last", copied);
        }
        let saves = [
            ("inside", "last", 4),
            ("inside", "best", 5),
            ("cleared", "best", 6),
            ("cleared", "last", 7),
            ("inside", "last", 8),
            ("twice", "best", 9),
            ("twice", "last", 9),
        ];
        let saves = saves.map(|(adapter, kept, step)| {
            let path = format!("adapters/{adapter}/{kept}");
            let event =
                json!({"event": "checkpoint", "adapter": adapter, "step": step, "path": path});
            event.to_string()
        });
        fs::write(run.join(EVENTS_FILE), saves.join("\n")).expect("written");
        let paths: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
        let seen = Arc::clone(&paths);
        let read: ReadAdapter = Arc::new(move |path: &Path| {
            seen.lock().expect("paths").push(path.to_owned());
            Ok(Vec::new())
        });
        let find = find_weights(run.clone(), read, None);
        for name in ["inside@5", "inside@8", "cleared@7"] {
            assert!(finds(&find, name), "{name}");
        }
        let read = ["inside/best", "inside/last", "cleared/last"];
        assert_eq!(
            *paths.lock().expect("paths"),
            read.map(|path| adapters.join(path))
        );
        fs::remove_file(adapters.join("twice/last/adapter_config.json")).expect("removed");
        assert!(finds(&find, "twice@9"));
        fs::remove_file(adapters.join("inside/best/adapter_config.json")).expect("removed");
        let broken = begin(&find, "inside@5").recv().expect("an answer");
        assert!(
            broken
                .unwrap_err()
                .contains("inside/best/adapter_config.json")
        );
        fs::remove_file(adapters.join("cleared/last/adapter_config.json")).expect("removed");
        let broken = begin(&find, "cleared@live").recv().expect("an answer");
        assert!(
            broken
                .unwrap_err()
                .contains("cleared/last/adapter_config.json")
        );
        for name in ["inside@08", "inside@+8", "inside@8.0", "nobody@8"] {
            assert!(!finds(&find, name), "{name}");
        }
        for (name, steps) in [("inside@4", "8, 5"), ("cleared@6", "7")] {
            let error = begin(&find, name).recv().expect("an answer").unwrap_err();
            assert!(
                error.ends_with(&format!(" the newest first: {steps}")),
                "{error}"
            );
        }
    }

    #[test]
    fn requests_for_one_adapter_share_a_copy_or_its_error() {
        let here = tempfile::tempdir().expect("a directory");
        let news = Arc::new(AtomicBool::new(false));
        let (asks, live) = LiveAsks::channel(Arc::clone(&news), Arc::new(Neighbour::new(0.5)));
        let read: ReadAdapter = Arc::new(|_: &_| Ok(Vec::new()));
        let find = find_weights(run(here.path()), read, Some(asks));
        let names = ["inside@live", "other@live", "inside@live", "other@live"];
        let found = names.map(|name| begin(&find, name));
        assert!(news.load(Ordering::Relaxed));
        let mut copied = Vec::new();
        live.answer_with(|adapter| {
            copied.push(adapter.to_owned());
            if adapter == "inside" {
                return Err("it has not begun to train".to_owned());
            }
            let (step, parts) = (3, Vec::new());
            Ok(Some(LiveAdapter { step, parts }))
        });
        assert_eq!(copied, ["inside", "other"]);
        for (name, found) in names.into_iter().zip(found) {
            match found.recv().expect("an answer") {
                Ok(found) => assert_eq!(found.expect("weights").digest, "other@3"),
                Err(error) => assert_eq!((name, &*error), (names[0], "it has not begun to train")),
            }
        }
        // A run that has ended answers nobody.
        drop(live);
        assert!(begin(&find, "inside@live").recv().is_err());
    }
}
