//! Writes saves in a thread beside the training.

use std::{
    collections::BTreeMap,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, Sender},
    thread::{self, JoinHandle},
};

use loraloom_model::PeftLoraConfig;
use loraloom_scheduler::{Learnt, TaskId};

use crate::{
    Best, TrainerError,
    adapter::{ModelAdapter, bytes_of, to_peft},
    checkpoint::{BestRecord, CheckpointWriter, RunRecord, Tensors},
    error::Result,
};

/// An item of a save; it is in host memory and does not change.
#[derive(Debug)]
pub(crate) enum SaveItem {
    /// An adapter for PEFT: its configuration and its state.
    Adapter(AdapterFiles, Box<PeftLoraConfig>, ModelAdapter),
    /// The state of the task of this name, for the checkpoint.
    Tensors(String, Tensors),
    /// The rest of the checkpoint.
    Checkpoint(Box<RunRecord>, Option<Learnt>),
}

/// Description of an adapter to be written as PEFT stores it.
#[derive(Debug)]
pub(crate) struct AdapterFiles {
    pub(crate) task: TaskId,
    /// The adapter's name.
    pub(crate) name: String,
    /// Its optimizer steps.
    pub(crate) step: usize,
    /// Its directory.
    pub(crate) path: PathBuf,
    /// Digest of the model that it is trained over.
    pub(crate) base: String,
    /// The version that it replaces.
    pub(crate) previous: PreviousVersion,
}

/// The version of an adapter on the disk before a save.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PreviousVersion {
    /// `last`, after this step.
    Last(Option<usize>),
    /// `best`, of this evaluation.
    Best(Option<Best>),
}

/// Results of the writes.
#[derive(Debug, Default)]
pub(crate) struct WriteResults {
    pub(crate) adapters: Vec<(AdapterFiles, Result<()>)>,
    pub(crate) checkpoint: Option<WrittenCheckpoint>,
}

/// Result of writing a checkpoint.
#[derive(Debug)]
pub(crate) struct WrittenCheckpoint {
    pub(crate) iteration: u64,
    /// Running tasks in it, by name, with their steps.
    pub(crate) steps: Vec<(String, usize)>,
    /// Its path.
    pub(crate) path: Result<PathBuf>,
}

/// Sent items with their bytes, and the channel for bytes that are finished.
#[derive(Debug)]
pub(crate) struct Pending {
    items: Receiver<(SaveItem, u64)>,
    done: Sender<u64>,
}

/// Accepts the items to be written.
#[derive(Debug)]
pub(crate) struct WriterQueue {
    /// `None` once all items were sent.
    sender: Option<Sender<(SaveItem, u64)>>,
    /// Bytes of finished items.
    done: Receiver<u64>,
    /// Bytes of items that may not be finished.
    held: u64,
    /// The most of these bytes, if there is a limit.
    pub(crate) limit: Option<u64>,
    /// Tasks whose tensors were sent for the checkpoint, with their steps.
    with_tensors: BTreeMap<TaskId, usize>,
}

/// A thread that writes the items that it receives.
#[derive(Debug)]
pub(crate) struct Writer {
    queue: WriterQueue,
    writing: Option<Receiver<()>>,
    thread: JoinHandle<WriteResults>,
}

impl Writer {
    /// Starts to write what is saved after `iteration`; the newest `keep` checkpoints in `parent` stay.
    pub(crate) fn start(parent: PathBuf, iteration: u64, keep: usize) -> Self {
        let (queue, pending) = WriterQueue::new();
        let (writes, writing) = mpsc::channel();
        Self {
            queue,
            writing: Some(writing),
            thread: thread::spawn(move || {
                let _writes: Sender<()> = writes;
                write_pending(&parent, iteration, keep, &pending)
            }),
        }
    }

    /// A receiver that is closed when all is written; given out once.
    pub(crate) fn writing(&mut self) -> Option<Receiver<()>> {
        self.writing.take()
    }

    pub(crate) fn queue(&mut self) -> &mut WriterQueue {
        &mut self.queue
    }

    /// Ends the queue.
    pub(crate) fn close(&mut self) {
        self.queue.sender = None;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue.sender.is_none()
    }

    /// True if all items were sent and written.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_closed() && self.thread.is_finished()
    }

    /// Waits until all is written.
    pub(crate) fn join(mut self) -> WriteResults {
        self.close();
        let written = self.thread.join();
        written.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl WriterQueue {
    /// A channel for items.
    pub(crate) fn new() -> (Self, Pending) {
        let (items, to_write) = mpsc::channel();
        let (written, done) = mpsc::channel();
        let sender = Self {
            sender: Some(items),
            done,
            held: 0,
            limit: None,
            with_tensors: BTreeMap::new(),
        };
        let pending = Pending {
            items: to_write,
            done: written,
        };
        (sender, pending)
    }

    /// Sends an item. Waits until it and the unfinished ones are within the limit, or it is the only one; an item
    /// without bytes does not wait.
    pub(crate) fn send(&mut self, item: SaveItem) {
        let bytes = item.bytes();
        let fits = |held| held == 0 || self.limit.is_none_or(|limit| held + bytes <= limit);
        while bytes > 0 && !fits(self.held) {
            let Ok(done) = self.done.recv() else {
                break;
            };
            self.held -= done;
        }
        self.held += bytes;
        if let Some(sender) = &self.sender {
            // A panic of the writer is reported when it is joined.
            let _ = sender.send((item, bytes));
        }
    }

    /// Sends a task's tensors for the checkpoint, as they are after `step` steps; as [`send`](Self::send).
    pub(crate) fn send_tensors(
        &mut self,
        (task, step): (TaskId, usize),
        name: String,
        tensors: Tensors,
    ) {
        self.with_tensors.insert(task, step);
        self.send(SaveItem::Tensors(name, tensors));
    }

    /// True if [`send_tensors`](Self::send_tensors) was called for this task at this step.
    pub(crate) fn has_tensors(&self, task: TaskId, step: usize) -> bool {
        self.with_tensors.get(&task) == Some(&step)
    }
}

impl SaveItem {
    /// Bytes of memory until it is written.
    fn bytes(&self) -> u64 {
        match self {
            // The state itself, and its weights (a third of it) twice: as PEFT stores them, and as a file.
            Self::Adapter(_, _, states) => bytes_of(states) / 3 * 5,
            Self::Tensors(_, tensors) => tensors.bytes(),
            Self::Checkpoint(..) => 0,
        }
    }
}

/// Writes items as they arrive, of the save after `iteration`; the newest `keep` checkpoints in `parent` stay. The
/// checkpoint comes last and lists only successful saves.
pub(crate) fn write_pending(
    parent: &Path,
    iteration: u64,
    keep: usize,
    pending: &Pending,
) -> WriteResults {
    let create = || CheckpointWriter::create(parent, iteration);
    let mut results = WriteResults::default();
    let mut begun = None;
    for (item, bytes) in &pending.items {
        match item {
            SaveItem::Adapter(files, config, states) => {
                let saved = to_peft(*config, files.base.clone(), &states)
                    .and_then(|peft| peft.save(&files.path));
                results
                    .adapters
                    .push((files, saved.map_err(TrainerError::from)));
            }
            SaveItem::Tensors(name, tensors) => {
                let writer = begun.take().unwrap_or_else(create);
                begun = Some(writer.and_then(|writer: CheckpointWriter| writer.add(name, tensors)));
            }
            SaveItem::Checkpoint(mut record, learnt) => {
                for (files, saved) in &results.adapters {
                    let mut tasks = record.tasks.iter_mut();
                    if saved.is_err()
                        && let Some(task) = tasks.find(|task| task.name == files.name)
                    {
                        match files.previous {
                            PreviousVersion::Last(step) => task.saved_steps = step,
                            PreviousVersion::Best(best) => task.best = best.map(BestRecord::from),
                        }
                    }
                }
                let writer = begun.take().unwrap_or_else(create);
                results.checkpoint = Some(WrittenCheckpoint {
                    iteration: record.iteration,
                    steps: record.begun().collect(),
                    path: writer.and_then(|writer| writer.commit(*record, learnt.as_ref(), keep)),
                });
            }
        }
        // The sender may no longer wait.
        let _ = pending.done.send(bytes);
    }
    results
}

#[cfg(test)]
mod tests {
    use super::{SaveItem, Tensors, Writer, WriterQueue};

    #[test]
    fn items_wait_below_the_limit() {
        let directory = tempfile::tempdir().expect("a directory");
        let held = |limit| {
            let mut writer = Writer::start(directory.path().to_owned(), 1, 1);
            let queue = writer.queue();
            queue.limit = limit;
            let names = ["a", "b", "c"];
            names.map(|name| {
                let tensors = Tensors::File(vec![0; 8]);
                queue.send(SaveItem::Tensors(name.to_owned(), tensors));
                queue.held
            })
        };
        assert_eq!(held(None), [8, 16, 24]);
        assert_eq!(held(Some(16)), [8, 16, 16]);
        // One item is always sent.
        assert_eq!(held(Some(3)), [8, 8, 8]);
    }

    /// The training thread does not wait for the disk before the record.
    #[test]
    fn an_item_without_bytes_never_waits() {
        let (mut queue, pending) = WriterQueue::new();
        queue.limit = Some(3);
        queue.send(SaveItem::Tensors("a".to_owned(), Tensors::File(vec![0; 8])));
        pending.done.send(8).expect("it listens");
        queue.send(SaveItem::Tensors("b".to_owned(), Tensors::File(Vec::new())));
        assert_eq!(queue.held, 8, "it has not looked what is written");
        assert_eq!(pending.items.try_iter().count(), 2);
    }
}
