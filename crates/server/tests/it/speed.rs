//! What the queue costs. Bounds are far above what is measured; the figures are printed.

use std::time::{Duration, Instant};

use crate::support::{bring, progress, start, submission, submit};
use loraloom_server::queue::{Cursor, LockedQueue, Progress, Queue, Submission};

fn timed<T>(what: &str, times: u32, mut run: impl FnMut() -> T) -> (T, Duration) {
    let begun = Instant::now();
    for _ in 1..times {
        run();
    }
    let last = run();
    let each = begun.elapsed() / times;
    println!("{what}: {each:?}");
    (last, each)
}

#[test]
fn ten_thousand_queued_tasks_open_in_five_seconds() {
    let (directory, mut server) = start();
    let submissions: Vec<_> = (0..10_000)
        .map(|index| Submission {
            spec: format!("{{\"text\":\"{}\"}}", "x".repeat(1500)),
            ..submission(&format!("task-{index}"))
        })
        .collect();
    timed("submit 10,000 at once", 1, || {
        server.queue_mut().submit_all(&submissions).unwrap().len()
    });
    drop(server);

    let ((server, _), start) = timed("start a server with 10,000", 1, || {
        LockedQueue::acquire(directory.path()).unwrap()
    });
    let (queue, open) = timed("open 10,000", 10, || Queue::open(directory.path()).unwrap());
    let (tasks, list) = timed("list 10,000", 10, || queue.tasks().unwrap());
    assert_eq!(tasks.len(), 10_000);
    let bound = Duration::from_secs(5);
    assert!(start < bound && open < bound && list < bound);

    let mut cursor = Cursor::default();
    assert_eq!(server.queue().changes(&mut cursor).unwrap().len(), 10_000);
    let (none, each) = timed("ask for changes, none", 1000, || {
        queue_changes(server.queue(), &mut cursor)
    });
    assert_eq!(none, 0);
    assert!(each < Duration::from_millis(5));
    let mut server = server;
    let mut step = 0;
    let (one, each) = timed("record one of 10,000 and hear of it", 100, || {
        step += 1;
        server
            .record(&[progress(tasks[5000].id, step)], &[])
            .unwrap();
        queue_changes(server.queue(), &mut cursor)
    });
    assert_eq!(one, 1);
    assert!(each < Duration::from_millis(250));
    let (none, each) = timed("ask for requests, none", 1000, || {
        server.queue().requests().unwrap().len()
    });
    assert_eq!(none, 0);
    assert!(each < Duration::from_millis(5));
}

fn queue_changes(queue: &Queue, cursor: &mut Cursor) -> usize {
    queue.changes(cursor).unwrap().len()
}

#[test]
fn progress_of_an_iteration_is_cheap() {
    let (_directory, mut server) = start();
    let ids: Vec<_> = (0..32)
        .map(|index| {
            let id = submit(&mut server, &format!("task-{index}"));
            bring(&mut server, id, loraloom_scheduler::TaskState::Running);
            id
        })
        .collect();
    let mut step = 0;
    let ((), each) = timed("record progress of 32 tasks", 200, || {
        step += 1;
        let progress: Vec<_> = ids
            .iter()
            .map(|&id| Progress {
                last_loss: Some(1.0 / step as f64),
                ..progress(id, step)
            })
            .collect();
        let counter = step.to_string();
        server
            .record(&progress, &[("tenant/default", &counter)])
            .unwrap();
    });
    assert!(each < Duration::from_millis(250));
    let mut index = 0;
    let (_, each) = timed("submit one", 100, || {
        index += 1;
        submit(&mut server, &format!("late-{index}"))
    });
    assert!(each < Duration::from_millis(250));
}
