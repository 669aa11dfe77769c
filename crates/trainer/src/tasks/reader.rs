use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::Scope,
};

use rayon::ThreadPoolBuilder;

use super::{RowCache, TaskData};
use crate::{NewTask, error::Result};

/// Reads the rows of tasks in other threads, one task after another.
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
    /// Starts the threads, which set `news` when rows are there. They end with the reader, or
    /// after their current task, which ends early once the flag of `rows` is set.
    pub(crate) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        mut rows: RowCache<'scope>,
        news: &'scope AtomicBool,
    ) -> Self {
        let (asked, tasks) = channel::<Box<NewTask>>();
        let (done, read) = channel();
        // In the pool that trains on the CPU, a step's work would wait until a whole batch of rows is done.
        let pool = ThreadPoolBuilder::new()
            .num_threads(rayon::current_num_threads().div_ceil(2))
            .thread_name(|index| format!("reader {index}"))
            .build();
        scope.spawn(move || {
            while let Ok(task) = tasks.try_recv().or_else(|_| {
                // Tasks that arrive together share the rows that are read; later ones read again.
                rows.clear();
                tasks.recv()
            }) {
                let mut read = || rows.read(&task.adapter, &task.dataset, task.seed);
                let found = match &pool {
                    Ok(pool) => pool.install(read),
                    Err(_) => read(),
                };
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

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::Path,
        sync::{
            atomic::{AtomicBool, Ordering},
            mpsc,
        },
        thread,
        time::{Duration, Instant},
    };

    use loraloom_data::Tokenizer;
    use loraloom_scheduler::TaskId;
    use serde_json::{from_value, json};

    use super::{Reader, RowCache};
    use crate::NewTask;

    fn tokenizer() -> Tokenizer {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-gqa");
        Tokenizer::load(&model).expect("a tokenizer")
    }

    fn task(dataset: serde_json::Value) -> NewTask {
        NewTask {
            id: TaskId(1),
            adapter: from_value(json!({"name": "a", "dataset": "data"})).expect("an adapter"),
            dataset: from_value(dataset).expect("a dataset"),
            seed: 0,
            digest: String::new(),
            sweep: None,
            paused: false,
        }
    }

    /// A step on the CPU uses it hundreds of times.
    #[test]
    fn the_pool_that_trains_is_free_while_rows_are_read() {
        const SLOW: &str = "{% for a in range(2000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}{{ text }}";
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("rows.jsonl");
        let (news, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let tokenizer = tokenizer();
        fs::write(&path, "{\"text\": \"one\"}\n".repeat(1000)).expect("written");
        let is_free = thread::scope(|scope| {
            let rows = RowCache::new(&tokenizer, usize::MAX).until(&stop);
            let reader = Reader::start(scope, rows, &news);
            reader.ask(Box::new(task(
                json!({"path": [path], "validation": 0.0, "template": SLOW}),
            )));
            let begun = Instant::now();
            while loraloom_data::reading().is_none() {
                assert!(begun.elapsed() < Duration::from_mins(1), "not read");
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(100));
            let (done, is_done) = mpsc::channel();
            rayon::spawn(move || {
                let _ = done.send(());
            });
            let is_free = is_done.recv_timeout(Duration::from_secs(10));
            stop.store(true, Ordering::Relaxed);
            is_free
        });
        assert!(is_free.is_ok(), "its threads read rows");
    }

    /// Both are seen in time; how fast depends on the machine.
    #[test]
    fn what_was_read_is_news_and_is_read_anew_later() {
        let tokenizer = tokenizer();
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("rows.jsonl");
        let task = task(json!({"path": [path], "validation": 0.0}));
        let news = AtomicBool::new(false);
        let begun = Instant::now();
        thread::scope(|scope| {
            let rows = RowCache::new(&tokenizer, usize::MAX);
            let reader = Reader::start(scope, rows, &news);
            let digest = || {
                reader.ask(Box::new(task.clone()));
                while !news.swap(false, Ordering::Relaxed) {
                    assert!(begun.elapsed() < Duration::from_mins(1), "no news");
                    thread::sleep(Duration::from_millis(1));
                }
                let read = reader.read().next().expect("a task that was read");
                read.rows.expect("rows").digest.clone()
            };
            fs::write(&path, r#"{"text": "one"}"#).expect("written");
            let before = digest();
            fs::write(&path, r#"{"text": "two"}"#).expect("written");
            // Its thread may not have seen yet that nothing else was asked for.
            while digest() == before {
                assert!(begun.elapsed() < Duration::from_mins(1), "not read anew");
            }
        });
    }
}
