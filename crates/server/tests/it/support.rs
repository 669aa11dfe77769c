//! Queues, submissions, other processes and random numbers.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

use loraloom_scheduler::{TaskId, TaskState};
use loraloom_server::queue::{LockedQueue, Progress, Submission, Transition};

const ROLE: &str = "LORALOOM_QUEUE_TEST_ROLE";
const DIRECTORY: &str = "LORALOOM_QUEUE_TEST_DIRECTORY";

/// A task with defaults.
pub(crate) fn submission(name: &str) -> Submission {
    Submission {
        name: name.to_owned(),
        tenant: "default".to_owned(),
        priority: 0,
        spec: format!("{{\"adapter\":{{\"name\":\"{name}\",\"lora\":{{\"r\":16}}}}}}"),
        dataset_hash: "b3:00".to_owned(),
        total_steps: Some(100),
        sweep: None,
        key: None,
    }
}

/// A task with an idempotency key.
pub(crate) fn keyed(name: &str, key: &str) -> Submission {
    Submission {
        key: Some(key.to_owned()),
        ..submission(name)
    }
}

/// A new queue in a directory of its own, with the server's lock.
pub(crate) fn start() -> (tempfile::TempDir, LockedQueue) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (server, recovered) = LockedQueue::acquire(directory.path()).expect("a new queue");
    assert_eq!(recovered, []);
    (directory, server)
}

/// A submitted task's identity.
pub(crate) fn submit(server: &mut LockedQueue, name: &str) -> TaskId {
    let accepted = server.queue_mut().submit(&submission(name));
    accepted.expect("a free name").id
}

/// Progress without losses.
pub(crate) fn progress(id: TaskId, step: u64) -> Progress {
    Progress {
        id,
        step,
        last_loss: None,
        best_metric: None,
    }
}

/// One transition.
pub(crate) fn to(id: TaskId, to: TaskState) -> Transition {
    Transition {
        id,
        to,
        reason: format!("to {to}"),
    }
}

/// Moves a task that was just submitted to a state, by legal transitions.
pub(crate) fn bring(server: &mut LockedQueue, id: TaskId, state: TaskState) {
    use TaskState::{Done, Failed, Parked, Paused, Queued, Running};
    let path: &[TaskState] = match state {
        Queued => &[],
        Parked => &[Running, Parked],
        Paused => &[Running, Paused],
        Done => &[Running, Done],
        Failed => &[Running, Failed],
        other => &[other],
    };
    for step in path {
        server.apply(&[to(id, *step)]).expect("a legal step");
    }
}

/// This test program as another process, which runs only the test `child` of `module`, the caller's
/// `module_path!()`.
pub(crate) fn other_process(module: &str, role: &str, directory: &Path) -> Command {
    let (_program, module) = module.split_once("::").expect("a module of this program");
    let mut command = Command::new(env::current_exe().expect("a test binary"));
    command
        .args([
            &format!("{module}::child"),
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .args(["--test-threads", "1"])
        .env(ROLE, role)
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped());
    command
}

/// In a process made by [`other_process`]: its role and its directory.
pub(crate) fn role() -> Option<(String, std::path::PathBuf)> {
    Some((env::var(ROLE).ok()?, env::var_os(DIRECTORY)?.into()))
}

/// The identity in a line `accepted ID` of another process; the test harness writes before the first.
pub(crate) fn accepted_in(line: &str) -> Option<TaskId> {
    let (_, id) = line.split_once("accepted ")?;
    Some(TaskId(id.trim().parse().ok()?))
}

/// SplitMix64: random numbers that a seed repeats.
pub(crate) struct Random(u64);

impl Random {
    /// From `LORALOOM_TEST_SEED`, or the clock; the seed is printed.
    pub(crate) fn new() -> Self {
        let seed = env::var("LORALOOM_TEST_SEED").map_or_else(
            |_| {
                let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
                now.map_or(0, |now| now.as_nanos() as u64)
            },
            |seed| seed.parse().expect("LORALOOM_TEST_SEED is a number"),
        );
        println!("LORALOOM_TEST_SEED={seed}");
        Self(seed)
    }

    /// Less than `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
