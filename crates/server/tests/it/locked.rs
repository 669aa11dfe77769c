//! The server's lock, what it stores, and recovery.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    sync::mpsc::{self, TryRecvError},
    thread,
    time::{Duration, Instant},
};

use crate::support::{bring, other_process, progress, role, start, submission, submit, to};
use loraloom_scheduler::{TaskId, TaskState};
use loraloom_server::queue::{
    Cursor, LockedQueue, Presence, Progress, Queue, QueueError, Recovered,
};

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Some((role, directory)) = role() else {
        return;
    };
    assert_eq!(role, "server");
    let (_server, _) = LockedQueue::acquire(&directory).expect("the lock is free");
    println!("ready");
    std::io::stdout().flush().unwrap();
    thread::sleep(Duration::from_mins(1));
}

#[test]
fn a_second_server_is_refused_until_the_first_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut other = other_process(module_path!(), "server", directory.path())
        .spawn()
        .unwrap();
    let output = BufReader::new(other.stdout.take().unwrap());
    let mut lines = output.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("ready")), "the other died");

    let begun = Instant::now();
    let error = LockedQueue::acquire(directory.path()).expect_err("the other has it");
    assert!(begun.elapsed() < Duration::from_secs(5));
    let QueueError::ServerRunning { pid, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*pid, Some(other.id()));
    assert!(error.hint().is_some());
    let mut queue = Queue::open(directory.path()).unwrap();
    let alive = Presence::Alive {
        pid: Some(other.id()),
    };
    assert_eq!(queue.server().unwrap(), alive);
    // Owners are not locked out.
    queue.submit(&submission("math")).unwrap();

    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(queue.server().unwrap(), Presence::Absent);
    let (server, _) = LockedQueue::acquire(directory.path()).unwrap();
    assert_eq!(server.queue().tasks().unwrap().len(), 1);
}

#[test]
fn a_process_has_at_most_one_server_too() {
    let (directory, server) = start();
    let error = LockedQueue::acquire(directory.path()).expect_err("this process has it");
    assert!(matches!(error, QueueError::ServerRunning { .. }), "{error}");
    drop(server);
    LockedQueue::acquire(directory.path()).unwrap();
}

#[test]
fn looking_for_a_server_keeps_none_from_starting() {
    let (directory, server) = start();
    let queue = Queue::open(directory.path()).unwrap();
    drop(server);
    thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        scope.spawn(move || {
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                queue.server().unwrap();
            }
        });
        for _ in 0..20 {
            LockedQueue::acquire(directory.path()).unwrap();
        }
        drop(stop);
    });
}

#[test]
fn only_a_server_creates_a_queue() {
    let directory = tempfile::tempdir().unwrap();
    let error = Queue::open(directory.path()).expect_err("nothing there");
    assert!(matches!(error, QueueError::Missing { .. }), "{error}");
    assert!(error.to_string().contains("queue.sqlite"));
    assert!(error.hint().is_some());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    let error = LockedQueue::acquire(&directory.path().join("absent")).expect_err("no directory");
    assert!(matches!(error, QueueError::Io { .. }), "{error}");
}

#[test]
fn what_a_lost_server_ran_is_parked_at_its_last_saved_step() {
    let (directory, mut server) = start();
    let names = ["saved", "unsaved", "parked", "paused", "queued", "done"];
    let ids = names.map(|name| submit(&mut server, name));
    for (id, state) in ids.iter().zip([
        TaskState::Running,
        TaskState::Running,
        TaskState::Parked,
        TaskState::Paused,
        TaskState::Queued,
        TaskState::Running,
    ]) {
        bring(&mut server, *id, state);
    }
    server
        .saved(&[(ids[0], 10), (ids[2], 7), (ids[3], 9)])
        .unwrap();
    let steps = [12, 3, 8, 9].into_iter().zip(ids);
    let progress = |(step, id)| Progress {
        last_loss: Some(1.0),
        ..progress(id, step)
    };
    let mut steps: Vec<_> = steps.map(progress).collect();
    steps.push(progress((100, ids[5])));
    server.record(&steps, &[("vtc/default", "1234.5")]).unwrap();
    server.apply(&[to(ids[5], TaskState::Done)]).unwrap();
    drop(server);

    let (server, recovered) = LockedQueue::acquire(directory.path()).unwrap();
    let expected = [(ids[0], 12, 10), (ids[1], 3, 0), (ids[2], 8, 7)];
    let expected = expected.map(|(id, from_step, to_step)| Recovered {
        id,
        from_step,
        to_step,
    });
    assert_eq!(recovered, expected);
    let tasks = server.queue().tasks().unwrap();
    assert!(tasks.iter().all(|task| task.saved_step == task.step));
    // Losses of steps that are taken again are not those of the steps before.
    let known: Vec<_> = tasks.iter().map(|task| task.last_loss.is_some()).collect();
    assert_eq!(known, [false, false, false, true, false, true]);
    let found: Vec<_> = tasks.iter().map(|task| (task.state, task.step)).collect();
    assert_eq!(
        found,
        [
            (TaskState::Parked, 10),
            (TaskState::Parked, 0),
            (TaskState::Parked, 7),
            (TaskState::Paused, 9),
            (TaskState::Queued, 0),
            (TaskState::Done, 100),
        ]
    );
    assert_eq!(tasks[0].reason, "server stopped");
    assert_eq!(server.queue().stored().unwrap()["vtc/default"], "1234.5");
}

#[test]
fn progress_is_written_for_all_tasks_or_none() {
    let (directory, mut server) = start();
    let ids = ["math", "code"].map(|name| submit(&mut server, name));
    let progress = |id, step, last_loss, best_metric| Progress {
        id,
        step,
        last_loss,
        best_metric,
    };
    let written = [
        progress(ids[0], 3, Some(f64::NAN), Some(f64::NEG_INFINITY)),
        progress(ids[1], 4, Some(0.1 + 0.2), None),
    ];
    server.record(&written, &[("a", "1"), ("b", "2")]).unwrap();
    server
        .record(&[progress(ids[1], 4, None, None)], &[("a", "3")])
        .unwrap();
    let same = server.queue().task(ids[1]).unwrap();
    assert_eq!(same.last_loss, Some(0.1 + 0.2), "of the same step");
    server
        .record(&[progress(ids[1], 5, None, None)], &[])
        .unwrap();
    server.planned(&[(ids[1], 500)]).unwrap();

    let queue = Queue::open(directory.path()).unwrap();
    let [math, code] = ids.map(|id| queue.task(id).unwrap());
    assert_eq!((math.step, code.step), (3, 5));
    assert!(math.last_loss.unwrap().is_nan(), "{:?}", math.last_loss);
    assert_eq!(math.best_metric, Some(f64::NEG_INFINITY));
    assert_eq!(
        (code.last_loss, code.best_metric),
        (None, None),
        "of step 4"
    );
    assert_eq!((math.total_steps, code.total_steps), (Some(100), Some(500)));
    let stored = queue.stored().unwrap();
    assert_eq!((stored["a"].as_str(), stored["b"].as_str()), ("3", "2"));

    let unknown = [
        progress(ids[0], 9, None, None),
        progress(TaskId(7), 1, None, None),
    ];
    let error = server
        .record(&unknown, &[("a", "4")])
        .expect_err("no task 7");
    assert!(matches!(error, QueueError::UnknownTask(TaskId(7))));
    assert!(server.saved(&[(ids[0], 9), (TaskId(7), 1)]).is_err());
    assert_eq!(queue.task(ids[0]).unwrap().step, 3);
    assert_eq!(queue.stored().unwrap()["a"], "3");
}

#[test]
fn a_watcher_hears_of_every_change_once() {
    let (directory, mut server) = start();
    let ids = ["a", "b", "c"].map(|name| submit(&mut server, name));
    let watcher = Queue::open(directory.path()).unwrap();
    let (mut there, mut here) = (Cursor::default(), Cursor::default());
    let mut heard = |server: &LockedQueue| {
        let ids = |tasks: Vec<loraloom_server::queue::QueuedTask>| -> Vec<u64> {
            tasks.iter().map(|task| task.id.0).collect()
        };
        let other = ids(watcher.changes(&mut there).unwrap());
        // The server's own connection is told of its own changes, too.
        assert_eq!(ids(server.queue().changes(&mut here).unwrap()), other);
        other
    };
    assert_eq!(heard(&server), [1, 2, 3]);
    assert_eq!(heard(&server), [] as [u64; 0]);
    server.apply(&[to(ids[1], TaskState::Running)]).unwrap();
    assert_eq!(heard(&server), [2]);
    server.record(&[progress(ids[1], 1)], &[]).unwrap();
    submit(&mut server, "d");
    assert_eq!(heard(&server), [2, 4]);
    server.record(&[], &[("k", "v")]).unwrap();
    assert_eq!(heard(&server), [] as [u64; 0]);
    server
        .explain(&[(ids[0], "waits for b"), (ids[2], "")])
        .unwrap();
    assert_eq!(heard(&server), [1]);
    server.explain(&[(ids[0], "waits for b")]).unwrap();
    assert_eq!(heard(&server), [] as [u64; 0]);
    assert!(server.explain(&[(TaskId(9), "")]).is_err());
    let new = watcher.tasks_after(ids[2]).unwrap();
    assert_eq!(new.len(), 1);
    assert_eq!(watcher.task(ids[0]).unwrap().explanation, "waits for b");
    // It was of the state that the task leaves.
    server.apply(&[to(ids[0], TaskState::Running)]).unwrap();
    assert_eq!(watcher.task(ids[0]).unwrap().explanation, "");
}
