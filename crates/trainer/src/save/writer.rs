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
    checkpoint::{BestRecord, Draft, RunRecord, Tensors},
    error::Result,
};

/// A part of a save; it is in host memory and does not change.
#[derive(Debug)]
pub(crate) enum Part {
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
    pub(crate) before: Before,
}

/// The version of an adapter on the disk before a save.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Before {
    /// `last`, after this step.
    Last(Option<usize>),
    /// `best`, of this evaluation.
    Best(Option<Best>),
}

/// Results of the writes.
#[derive(Debug, Default)]
pub(crate) struct Written {
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

/// Sent parts with their bytes, and the channel for bytes that are finished.
#[derive(Debug)]
pub(crate) struct Pending {
    parts: Receiver<(Part, u64)>,
    done: Sender<u64>,
}

/// Accepts the parts to be written.
#[derive(Debug)]
pub(crate) struct Parts {
    /// `None` once all parts were sent.
    sender: Option<Sender<(Part, u64)>>,
    /// Bytes of finished parts.
    done: Receiver<u64>,
    /// Bytes of parts that may not be finished.
    held: u64,
    /// Limit on these bytes, if there is one.
    pub(crate) room: Option<u64>,
    /// Tasks whose tensors were sent for the checkpoint, with their steps.
    drafted: BTreeMap<TaskId, usize>,
}

/// A thread that writes the parts that it receives.
#[derive(Debug)]
pub(crate) struct Writer {
    parts: Parts,
    writing: Option<Receiver<()>>,
    thread: JoinHandle<Written>,
}

impl Writer {
    /// Starts to write what is saved after `iteration`; the newest `keep` checkpoints in `parent` stay.
    pub(crate) fn start(parent: PathBuf, iteration: u64, keep: usize) -> Self {
        let (parts, pending) = Parts::new();
        let (writes, writing) = mpsc::channel();
        Self {
            parts,
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

    pub(crate) fn parts(&mut self) -> &mut Parts {
        &mut self.parts
    }

    /// Ends the parts.
    pub(crate) fn close(&mut self) {
        self.parts.sender = None;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.parts.sender.is_none()
    }

    /// Whether all parts were sent and written.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_closed() && self.thread.is_finished()
    }

    /// Waits until all is written.
    pub(crate) fn join(mut self) -> Written {
        self.close();
        let written = self.thread.join();
        written.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Parts {
    /// A channel for parts.
    pub(crate) fn new() -> (Self, Pending) {
        let (parts, to_write) = mpsc::channel();
        let (written, done) = mpsc::channel();
        let sender = Self {
            sender: Some(parts),
            done,
            held: 0,
            room: None,
            drafted: BTreeMap::new(),
        };
        let pending = Pending {
            parts: to_write,
            done: written,
        };
        (sender, pending)
    }

    /// Sends a part. Waits until the unfinished parts leave room for it, or it is the only one; a part without bytes
    /// does not wait.
    pub(crate) fn send(&mut self, part: Part) {
        let bytes = part.bytes();
        let fits = |held| held == 0 || self.room.is_none_or(|room| held + bytes <= room);
        while bytes > 0 && !fits(self.held) {
            let Ok(done) = self.done.recv() else {
                break;
            };
            self.held -= done;
        }
        self.held += bytes;
        if let Some(sender) = &self.sender {
            // A panic of the writer is reported when it is joined.
            let _ = sender.send((part, bytes));
        }
    }

    /// Sends a task's tensors for the checkpoint, as they are after `step` steps; as [`send`](Self::send).
    pub(crate) fn draft(&mut self, (task, step): (TaskId, usize), name: String, tensors: Tensors) {
        self.drafted.insert(task, step);
        self.send(Part::Tensors(name, tensors));
    }

    /// Whether [`draft`](Self::draft) was called for this task at this step.
    pub(crate) fn has_drafted(&self, task: TaskId, step: usize) -> bool {
        self.drafted.get(&task) == Some(&step)
    }
}

impl Part {
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

/// Writes parts as they arrive, of the save after `iteration`; the newest `keep` checkpoints in `parent` stay. The
/// checkpoint comes last and lists only successful saves.
pub(crate) fn write_pending(
    parent: &Path,
    iteration: u64,
    keep: usize,
    pending: &Pending,
) -> Written {
    let create = || Draft::create(parent, iteration);
    let mut written = Written::default();
    let mut draft = None;
    for (part, bytes) in &pending.parts {
        match part {
            Part::Adapter(files, config, states) => {
                let saved = to_peft(*config, files.base.clone(), &states)
                    .and_then(|peft| peft.save(&files.path));
                written
                    .adapters
                    .push((files, saved.map_err(TrainerError::from)));
            }
            Part::Tensors(name, tensors) => {
                let begun = draft.take().unwrap_or_else(create);
                draft = Some(begun.and_then(|draft: Draft| draft.add(name, tensors)));
            }
            Part::Checkpoint(mut record, learnt) => {
                for (files, saved) in &written.adapters {
                    let mut tasks = record.tasks.iter_mut();
                    if saved.is_err()
                        && let Some(task) = tasks.find(|task| task.name == files.name)
                    {
                        match files.before {
                            Before::Last(step) => task.saved_steps = step,
                            Before::Best(best) => task.best = best.map(BestRecord::from),
                        }
                    }
                }
                let begun = draft.take().unwrap_or_else(create);
                written.checkpoint = Some(WrittenCheckpoint {
                    iteration: record.iteration,
                    steps: record.begun().collect(),
                    path: begun.and_then(|draft| draft.commit(*record, learnt.as_ref(), keep)),
                });
            }
        }
        // The sender may no longer wait.
        let _ = pending.done.send(bytes);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::{Part, Parts, Tensors, Writer};

    #[test]
    fn parts_wait_for_room() {
        let directory = tempfile::tempdir().expect("a directory");
        let held = |room| {
            let mut writer = Writer::start(directory.path().to_owned(), 1, 1);
            let parts = writer.parts();
            parts.room = room;
            let names = ["a", "b", "c"];
            names.map(|name| {
                let tensors = Tensors::File(vec![0; 8]);
                parts.send(Part::Tensors(name.to_owned(), tensors));
                parts.held
            })
        };
        assert_eq!(held(None), [8, 16, 24]);
        assert_eq!(held(Some(16)), [8, 16, 16]);
        // One part is always sent.
        assert_eq!(held(Some(3)), [8, 8, 8]);
    }

    /// The training thread does not wait for the disk before the record.
    #[test]
    fn a_part_without_bytes_never_waits() {
        let (mut parts, pending) = Parts::new();
        parts.room = Some(3);
        parts.send(Part::Tensors("a".to_owned(), Tensors::File(vec![0; 8])));
        pending.done.send(8).expect("it listens");
        parts.send(Part::Tensors("b".to_owned(), Tensors::File(Vec::new())));
        assert_eq!(parts.held, 8, "it has not looked what is written");
        assert_eq!(pending.parts.try_iter().count(), 2);
    }
}
