use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::Scope,
};

use super::{RowCache, TaskData};
use crate::{NewTask, error::Result};

/// Reads the rows of tasks, one task after another, while others train.
#[derive(Debug)]
pub(crate) struct Reader {
    asked: Sender<Box<NewTask>>,
    read: Receiver<ReadTask>,
}

/// A task and its rows.
#[derive(Debug)]
pub(crate) struct ReadTask {
    pub(crate) task: Box<NewTask>,
    pub(crate) rows: Result<Arc<TaskData>>,
}

impl Reader {
    /// Reads in a thread of its own, which sets `news` when rows are there. It ends with the reader,
    /// or after what it reads then.
    pub(crate) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        mut rows: RowCache<'scope>,
        news: &'scope AtomicBool,
    ) -> Self {
        let (asked, tasks) = channel::<Box<NewTask>>();
        let (done, read) = channel();
        scope.spawn(move || {
            while let Ok(task) = tasks.try_recv().or_else(|_| {
                // Tasks that come together share what is read; later ones read it anew.
                rows.clear();
                tasks.recv()
            }) {
                let found = rows.read(&task.adapter, &task.dataset, task.seed);
                if done.send(ReadTask { task, rows: found }).is_err() {
                    return;
                }
                news.store(true, Ordering::Relaxed);
            }
        });
        Self { asked, read }
    }

    /// Asks for the rows of a task.
    pub(crate) fn ask(&self, task: Box<NewTask>) {
        // Its thread ends before this does only by a panic, which the scope passes on.
        let _ = self.asked.send(task);
    }

    /// Tasks whose rows are there, in the order in which they were asked for.
    pub(crate) fn read(&self) -> impl Iterator<Item = ReadTask> {
        self.read.try_iter()
    }
}
