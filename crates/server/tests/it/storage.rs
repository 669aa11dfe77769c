//! Directories that cannot be written, and disks that are full.

use std::{
    env, fs,
    os::unix::{fs::MetadataExt, fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{other_process, role, start, submission, submit, to};
use loraloom_scheduler::{TaskId, TaskState};
use loraloom_server::queue::{LockedQueue, Queue, QueueError, Submission};

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Some((role, directory)) = role() else {
        return;
    };
    match role.as_str() {
        "unwritable" => unwritable(&directory),
        "full" => full(&directory),
        "limited" => limited(&directory),
        other => panic!("{other}"),
    }
    println!("as expected");
}

/// Runs a child to its end.
fn expect_success(mut command: Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.contains("as expected"), "{text}\n{errors}");
    print!("{text}");
}

fn unwritable(directory: &Path) {
    let error = LockedQueue::acquire(directory).expect_err("no lock can be made");
    assert!(matches!(error, QueueError::Io { .. }), "{error:?}");
    assert!(error.to_string().contains("Permission denied"), "{error}");
    let error = Queue::open(directory)
        .and_then(|mut queue| queue.submit(&submission("code")))
        .expect_err("nothing can be written");
    assert!(matches!(error, QueueError::ReadOnly { .. }), "{error:?}");
    assert!(error.to_string().contains("queue.sqlite"), "{error}");
    assert!(error.hint().is_some());
    let unreadable = directory.join("unreadable");
    let error = Queue::open(&unreadable).expect_err("nothing can be read");
    assert!(matches!(error, QueueError::Io { .. }), "{error:?}");
}

/// Permissions do not bind root, so the child runs as another user then.
#[test]
fn a_directory_that_cannot_be_written_is_reported() {
    let (directory, mut server) = start();
    submit(&mut server, "math");
    drop(server);
    let unreadable = directory.path().join("unreadable");
    fs::create_dir(&unreadable).unwrap();
    let file = unreadable.join("queue.sqlite");
    fs::copy(directory.path().join("queue.sqlite"), &file).unwrap();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&file, 0o000);
    mode(&directory.path().join("queue.sqlite"), 0o444);
    mode(&directory.path().join("server.lock"), 0o444);
    mode(directory.path(), 0o555);

    let mut command = other_process(module_path!(), "unwritable", directory.path());
    let programs = tempfile::tempdir().unwrap();
    if fs::metadata(directory.path()).unwrap().uid() == 0 {
        mode(programs.path(), 0o755);
        let program = programs.path().join("test");
        fs::copy(env::current_exe().unwrap(), &program).unwrap();
        command = with_arguments(Command::new(&program), &command);
        command.uid(65534).gid(65534).current_dir("/");
    }
    expect_success(command);
    mode(directory.path(), 0o755);
}

fn long(index: usize) -> Submission {
    Submission {
        spec: "long ".repeat(2000),
        ..submission(&format!("task-{index}"))
    }
}

/// Submits until it is refused; everything accepted before is there.
fn fill(queue: &mut Queue) -> (Vec<TaskId>, QueueError) {
    let mut accepted = Vec::new();
    loop {
        match queue.submit(&long(accepted.len())) {
            Ok(task) => accepted.push(task.id),
            Err(error) => return (accepted, error),
        }
    }
}

fn expect_all(queue: &Queue, accepted: &[TaskId]) {
    let tasks = queue.tasks().unwrap();
    let found: Vec<_> = tasks.iter().map(|task| task.id).collect();
    assert_eq!(found, accepted);
    for (index, id) in accepted.iter().enumerate() {
        assert_eq!(queue.spec(*id).unwrap(), long(index));
    }
}

/// In a small file system of its own.
fn full(directory: &Path) {
    let ballast = directory.join("ballast");
    fs::write(&ballast, vec![1; 100_000]).unwrap();
    let (mut server, _) = LockedQueue::acquire(directory).unwrap();
    let (accepted, error) = fill(server.queue_mut());
    println!("{} accepted, then: {error}", accepted.len());
    assert!(accepted.len() > 5);
    assert!(matches!(error, QueueError::DiskFull { .. }), "{error:?}");
    assert!(error.hint().is_some());
    expect_all(server.queue(), &accepted);
    drop(server);

    // A server can stop and start again while there is nothing left.
    match LockedQueue::acquire(directory) {
        Ok((server, _)) => expect_all(server.queue(), &accepted),
        Err(error) => assert!(matches!(error, QueueError::DiskFull { .. }), "{error:?}"),
    }
    fs::remove_file(ballast).unwrap();
    let (mut server, _) = LockedQueue::acquire(directory).unwrap();
    expect_all(server.queue(), &accepted);
    server
        .apply(&[to(accepted[0], TaskState::Running)])
        .unwrap();
    server.queue_mut().submit(&long(accepted.len())).unwrap();
}

#[test]
fn a_full_disk_loses_nothing() {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-U", "-r", "-m", "sh", "-e", "-c", script, "sh"]);
        command
    };
    let directory = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=700k none \"$1\"; shift; exec \"$@\"";
    let mut probe = unshare(mount);
    probe.arg(directory.path()).arg("true");
    if !probe.output().is_ok_and(|output| output.status.success()) {
        println!("skipped: no file system can be mounted here");
        return;
    }
    let child = other_process(module_path!(), "full", directory.path());
    let mut command = unshare(mount);
    command.arg(directory.path()).arg(child.get_program());
    let command = with_arguments(command, &child);
    expect_success(command);
}

/// Adds the arguments and variables of `child` to a command.
fn with_arguments(mut command: Command, child: &Command) -> Command {
    command.args(child.get_args());
    command.envs(
        child
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    command
}

/// With a limit on the size of files: a write fails for another reason than a full disk.
fn limited(directory: &Path) {
    let mut queue = Queue::open(directory).unwrap();
    let (accepted, error) = fill(&mut queue);
    println!("{} accepted, then: {error}", accepted.len());
    assert!(accepted.len() > 5);
    assert!(matches!(error, QueueError::Sqlite { .. }), "{error:?}");
    assert!(error.to_string().contains("queue.sqlite"), "{error}");
    expect_all(&queue, &accepted);
    fs::write(directory.join("accepted"), accepted.len().to_string()).unwrap();
}

#[test]
fn a_write_that_fails_loses_nothing() {
    let (directory, server) = start();
    let child = other_process(module_path!(), "limited", directory.path());
    let mut command = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -f 1500; exec \"$@\"";
    command
        .args(["-e", "-c", script, "sh"])
        .arg(child.get_program());
    expect_success(with_arguments(command, &child));
    let accepted = directory.path().join("accepted");
    let accepted: u64 = fs::read_to_string(accepted).unwrap().parse().unwrap();
    let ids: Vec<_> = (1..=accepted).map(TaskId).collect();
    expect_all(server.queue(), &ids);
}

/// An absolute path that SQLite could take for a URI with options, were it not made absolute.
#[test]
fn a_directory_may_have_any_name() {
    let parent = tempfile::tempdir().unwrap();
    for name in [
        "file:x?mode=memory",
        "with space",
        "%41",
        "naïve",
        ":memory:",
    ] {
        let directory: PathBuf = parent.path().join(name);
        fs::create_dir(&directory).unwrap();
        let (mut server, _) = LockedQueue::acquire(&directory).unwrap();
        submit(&mut server, "math");
        assert!(directory.join("queue.sqlite").is_file(), "{name}");
        assert_eq!(Queue::open(&directory).unwrap().tasks().unwrap().len(), 1);
    }
}
