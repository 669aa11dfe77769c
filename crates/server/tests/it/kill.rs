//! Killed at any time, the queue keeps what it accepted.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use crate::support::{Random, accepted_in, keyed, other_process, progress, role, to};
use loraloom_scheduler::{TaskId, TaskState};
use loraloom_server::queue::{LockedQueue, Queue, QueueError, QueuedTask, Request};

const ROUNDS: u64 = 60;
/// The rounds take about half of this; a machine that is busier does fewer, but never less than 50.
const BOUND: Duration = Duration::from_secs(20);

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    match role() {
        Some((role, directory)) if role == "serve" => serve(&directory),
        Some((role, directory)) if role == "create" => {
            println!("accepted 0");
            let _server = LockedQueue::acquire(&directory).unwrap();
            thread::sleep(Duration::from_mins(1));
        }
        Some((round, directory)) => submit_for_ever(&directory, &round),
        None => {}
    }
}

/// Says what was accepted at once, and only then.
fn submit_for_ever(directory: &Path, round: &str) {
    let mut queue = Queue::open(directory).unwrap();
    let mut output = std::io::stdout();
    for index in 0.. {
        let key = format!("{round}-{index}");
        let id = queue
            .submit(&keyed(&format!("task-{key}"), &key))
            .unwrap()
            .id;
        writeln!(output, "accepted {}", id.0).unwrap();
        output.flush().unwrap();
    }
}

/// Does what a server does, with steps of 2 ms.
fn serve(directory: &Path) {
    let (mut server, _) = LockedQueue::acquire(directory).unwrap();
    println!("accepted 0");
    for iteration in 1.. {
        thread::sleep(Duration::from_millis(2));
        server.carry_out_waiting().unwrap();
        let tasks = server.queue().tasks().unwrap();
        let live: Vec<&QueuedTask> = tasks.iter().filter(|task| !task.state.is_final()).collect();
        let transitions: Vec<_> = live
            .iter()
            .take(4)
            .map(|task| match task.state {
                TaskState::Running if task.step >= 5 => to(task.id, TaskState::Done),
                TaskState::Running => to(task.id, TaskState::Parked),
                _ => to(task.id, TaskState::Running),
            })
            .collect();
        server.apply(&transitions).unwrap();
        let steps: Vec<_> = live
            .iter()
            .take(4)
            .map(|task| progress(task.id, task.step + 1))
            .collect();
        let counter = iteration.to_string();
        server.record(&steps, &[("iteration", &counter)]).unwrap();
        let saved: Vec<_> = steps.iter().map(|step| (step.id, step.step)).collect();
        server.saved(&saved).unwrap();
    }
}

/// A process that does not outlive its test, and what it says.
struct Killable {
    process: Child,
    reader: Option<thread::JoinHandle<Vec<TaskId>>>,
}

impl Drop for Killable {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a process and waits until it has said something.
fn begin(role: &str, directory: &Path) -> Killable {
    let mut process = other_process(module_path!(), role, directory)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let (begun, first) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        let mut accepted = Vec::new();
        // A line is whole or was not flushed: what a kill cuts off was not said.
        while let Some(Ok(line)) = lines.next() {
            if let Some(id) = accepted_in(&line) {
                accepted.push(id);
                let _ = begun.send(());
            }
        }
        accepted
    });
    let killable = Killable {
        process,
        reader: Some(reader),
    };
    first
        .recv_timeout(Duration::from_secs(30))
        .expect("the process says that it has begun");
    killable
}

/// Kills a process; what it has said.
fn kill(mut killable: Killable) -> Vec<TaskId> {
    let process = &mut killable.process;
    process.kill().unwrap();
    let status = process.wait().unwrap();
    assert!(!status.success(), "it ran until it was killed");
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), Some(9), "{status}");
    }
    let reader = killable.reader.take().unwrap();
    reader.join().unwrap()
}

#[test]
fn no_accepted_task_is_lost() {
    let mut random = Random::new();
    let directory = tempfile::tempdir().unwrap();
    drop(LockedQueue::acquire(directory.path()).unwrap());
    let mut known: BTreeSet<TaskId> = BTreeSet::new();
    let begun = Instant::now();
    let mut round = 0;
    let mut found = 0;
    while round < ROUNDS && (round < 50 || begun.elapsed() < BOUND) {
        round += 1;
        let submitter = begin(&round.to_string(), directory.path());
        thread::sleep(Duration::from_micros(random.below(60_000)));
        let accepted = kill(submitter);

        let mut queue = Queue::open(directory.path()).unwrap();
        let tasks = queue.tasks().unwrap();
        let present: BTreeSet<TaskId> = tasks.iter().map(|task| task.id).collect();
        let lost: Vec<_> = accepted.iter().filter(|id| !present.contains(id)).collect();
        assert!(
            lost.is_empty(),
            "round {round}: lost {lost:?} of {accepted:?}"
        );
        assert!(
            present.is_superset(&known),
            "round {round}: lost earlier ones"
        );
        // At most the last was accepted and not said.
        let new = present.len() - found;
        assert!(
            new == accepted.len() || new == accepted.len() + 1,
            "round {round}: {new}"
        );

        // A submitter that is unsure submits again, and gets the existing task.
        for (index, id) in accepted.iter().enumerate().rev().take(3) {
            let key = format!("{round}-{index}");
            let again = queue.submit(&keyed(&format!("task-{key}"), &key)).unwrap();
            assert_eq!((again.id, again.new), (*id, false));
        }
        let key = format!("{round}-{}", accepted.len());
        let unsure = queue.submit(&keyed(&format!("task-{key}"), &key)).unwrap();
        assert_eq!(unsure.new, new == accepted.len());
        known = present;
        known.insert(unsure.id);
        found = known.len();
    }
    println!("{round} kills, {found} tasks, {:?}", begun.elapsed());
    let (server, _) = LockedQueue::acquire(directory.path()).unwrap();
    assert_eq!(server.queue().tasks().unwrap().len(), found);
    for task in server.queue().tasks().unwrap() {
        let key = task.key.unwrap();
        assert_eq!(
            server.queue().spec(task.id).unwrap(),
            keyed(&task.name, &key)
        );
    }
}

#[test]
fn a_killed_server_leaves_what_the_next_takes_up() {
    let mut random = Random::new();
    let directory = tempfile::tempdir().unwrap();
    let mut known: BTreeSet<TaskId> = BTreeSet::new();
    let mut ended: BTreeSet<TaskId> = BTreeSet::new();
    let mut iterations = 0;
    for round in 0..15 {
        let server = begin("serve", directory.path());
        let submitter = begin(&round.to_string(), directory.path());
        thread::sleep(Duration::from_micros(random.below(40_000)));
        let mut owner = Queue::open(directory.path()).unwrap();
        if let Some(task) = owner
            .tasks()
            .unwrap()
            .iter()
            .rev()
            .find(|t| !t.state.is_final())
        {
            // It may end in this moment.
            let _ = owner.request(task.id, Request::Cancel);
        }
        drop(owner);
        thread::sleep(Duration::from_micros(random.below(40_000)));
        kill(server);
        known.extend(kill(submitter));

        // Its lock is free, and the file whole: every page, index and specification is read.
        let (server, _) = LockedQueue::acquire(directory.path()).unwrap();
        let tasks = server.queue().tasks().unwrap();
        let present: BTreeSet<TaskId> = tasks.iter().map(|task| task.id).collect();
        assert!(present.is_superset(&known), "round {round}");
        for task in &tasks {
            assert_ne!(task.state, TaskState::Running);
            assert!(task.state.is_final() || task.step == task.saved_step);
            assert!(
                !ended.contains(&task.id) || task.state.is_final(),
                "an end is an end"
            );
        }
        let finals = tasks.iter().filter(|task| task.state.is_final());
        ended.extend(finals.map(|task| task.id));
        let stored = server.queue().stored().unwrap();
        let counter: u64 = stored
            .get("iteration")
            .map_or(0, |text| text.parse().unwrap());
        iterations += counter;
    }
    println!("{} tasks, {} ended", known.len(), ended.len());
    assert!(!ended.is_empty() && iterations > 0);
}

/// Also when it is the first server, which creates the file.
#[test]
fn a_server_killed_while_it_creates_leaves_a_whole_file_or_none() {
    let mut random = Random::new();
    let (mut without, mut with) = (0, 0);
    let mut usual = Duration::from_millis(10);
    for _ in 0..40 {
        let directory = tempfile::tempdir().unwrap();
        let process = begin("create", directory.path());
        let longest = usual.as_micros() as u64 * 2;
        thread::sleep(Duration::from_micros(random.below(longest)));
        kill(process);
        match Queue::open(directory.path()) {
            Ok(queue) => {
                with += 1;
                assert_eq!(queue.tasks().unwrap(), []);
            }
            Err(QueueError::Missing { .. }) => without += 1,
            Err(error) => panic!("{error}"),
        }
        let begun = Instant::now();
        let (mut server, _) = LockedQueue::acquire(directory.path()).unwrap();
        if without > with {
            usual = begun.elapsed();
        }
        server.queue_mut().submit(&keyed("math", "k")).unwrap();
        let entries = std::fs::read_dir(directory.path()).unwrap();
        for entry in entries {
            let name = entry.unwrap().file_name();
            assert!(!name.to_string_lossy().contains(".new"), "{name:?} is left");
        }
    }
    println!("killed {without} times before, {with} times after");
}
