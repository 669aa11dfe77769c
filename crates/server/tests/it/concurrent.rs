//! Many submitters at once.

use std::{collections::BTreeSet, io::Write, path::Path, thread};

use crate::support::{accepted_in, other_process, role, start, submission};
use loraloom_scheduler::TaskId;
use loraloom_server::queue::Queue;

const SUBMITTERS: usize = 8;
const EACH: usize = 50;

/// A process that reads the queue and ends.
const LOOK: &str = "look";

fn submit_many(directory: &Path, submitter: usize) -> Vec<TaskId> {
    let mut queue = Queue::open(directory).unwrap();
    let submit = |index| {
        let name = format!("task-{submitter}-{index}");
        queue.submit(&submission(&name)).unwrap().id
    };
    (0..EACH).map(submit).collect()
}

fn check(queue: &Queue, accepted: &[Vec<TaskId>]) {
    for ids in accepted {
        assert_eq!(ids.len(), EACH);
        assert!(ids.is_sorted(), "later submissions have larger identities");
    }
    let all: BTreeSet<TaskId> = accepted.iter().flatten().copied().collect();
    assert_eq!(all.len(), SUBMITTERS * EACH, "distinct");
    let tasks = queue.tasks().unwrap();
    let found: BTreeSet<TaskId> = tasks.iter().map(|task| task.id).collect();
    assert_eq!(found, all);
    for (submitter, ids) in accepted.iter().enumerate() {
        for (index, id) in ids.iter().enumerate() {
            let name = format!("task-{submitter}-{index}");
            assert_eq!(queue.spec(*id).unwrap(), submission(&name));
        }
    }
}

#[test]
fn threads_lose_nothing() {
    let (directory, server) = start();
    let directory = directory.path();
    let accepted: Vec<_> = thread::scope(|scope| {
        let submitters: Vec<_> = (0..SUBMITTERS)
            .map(|submitter| scope.spawn(move || submit_many(directory, submitter)))
            .collect();
        submitters.into_iter().map(|t| t.join().unwrap()).collect()
    });
    check(server.queue(), &accepted);
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Some((role, directory)) = role() else {
        return;
    };
    if role == LOOK {
        Queue::open(&directory).unwrap().tasks().unwrap();
        return;
    }
    let ids = submit_many(&directory, role.parse().unwrap());
    for id in ids {
        println!("accepted {}", id.0);
    }
    std::io::stdout().flush().unwrap();
}

/// On Unix, a file that a process closes loses all its locks, and who closes a queue without locks removes its log.
#[test]
fn a_process_that_opens_a_queue_twice_keeps_its_log() {
    let (directory, mut server) = start();
    let twice = Queue::open(directory.path()).unwrap();
    let looked = other_process(module_path!(), LOOK, directory.path()).status();
    assert!(looked.unwrap().success());
    assert!(directory.path().join("queue.sqlite-wal").exists());
    let id = server.queue_mut().submit(&submission("a")).unwrap().id;
    assert_eq!(twice.tasks().unwrap()[0].id, id);
    drop(twice);
    assert_eq!(
        Queue::open(directory.path())
            .unwrap()
            .task(id)
            .unwrap()
            .name,
        "a"
    );
}

#[test]
fn processes_lose_nothing() {
    let (directory, server) = start();
    let spawn = |submitter: usize| {
        let mut command = other_process(module_path!(), &submitter.to_string(), directory.path());
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..SUBMITTERS).map(spawn).collect();
    let accepted: Vec<_> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            let text = String::from_utf8(output.stdout).unwrap();
            text.lines().filter_map(accepted_in).collect()
        })
        .collect();
    check(server.queue(), &accepted);
}
