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

/// Reads the rows of tasks in another thread, one task after another.
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
    /// Starts the thread, which sets `news` when rows are there. It ends with the reader, or after its current task.
    pub(crate) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        mut rows: RowCache<'scope>,
        news: &'scope AtomicBool,
    ) -> Self {
        let (asked, tasks) = channel::<Box<NewTask>>();
        let (done, read) = channel();
        scope.spawn(move || {
            while let Ok(task) = tasks.try_recv().or_else(|_| {
                // Tasks that arrive together share the rows that are read; later ones read again.
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

    /// Requests the rows of a task.
    pub(crate) fn ask(&self, task: Box<NewTask>) {
        // The thread ends early only by a panic, which the scope passes on.
        let _ = self.asked.send(task);
    }

    /// Tasks whose rows are read, in the order of the requests.
    pub(crate) fn read(&self) -> impl Iterator<Item = ReadTask> {
        self.read.try_iter()
    }
}
