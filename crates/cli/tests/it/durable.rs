//! Saved files survive a crash of the machine. strace records or delays the calls that sync them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    server::{Server, served},
    support::Workspace,
};

pub(crate) const CONFIG: &str = "\
model: tiny-llama
output_dir: run
device: cpu
datasets: {shout: {path: data/shout.jsonl}}
defaults: {train: {batch_size: 2, max_steps: 40, max_seq_len: 48}, save: {steps: 15}}
adapters: [{name: shout, dataset: shout, lora: {r: 2}}]
";

/// Tries whether strace may trace a program here.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn traces() -> bool {
    let mut strace = Command::new("strace");
    let traced = strace.args(["-o", "/dev/null", "true"]).status();
    let traces = traced.is_ok_and(|status| status.success());
    if !traces {
        println!("skipped: no program can be traced here with strace");
    }
    traces
}

/// A call that names files.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Written(PathBuf),
    Synced(PathBuf),
    Made(PathBuf),
    Renamed(PathBuf, PathBuf),
}

/// The calls of a command that ends well, in the order in which they began.
fn calls(here: &Workspace, arguments: &[&str]) -> Vec<Call> {
    let strace = "strace -f -qq -y -s 0 --trace=openat,pwrite64,fsync,fdatasync,mkdir,rename,renameat,renameat2 -o trace";
    let strace: Vec<&str> = strace.split(' ').collect();
    let output = here.command_under(&strace, arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let trace = fs::read_to_string(here.path("trace")).unwrap();
    trace.lines().filter_map(|line| call(here, line)).collect()
}

fn call(here: &Workspace, line: &str) -> Option<Call> {
    let (name, rest) = line.split_once(' ')?.1.trim_start().split_once('(')?;
    let named = || {
        rest.split('"')
            .skip(1)
            .step_by(2)
            .map(|name| here.path(name))
    };
    let of_descriptor = || Some(rest.split_once('<')?.1.split_once('>')?.0.into());
    Some(match name {
        "openat" if rest.contains("O_CREAT") => Call::Written(named().next()?),
        "pwrite64" => Call::Written(of_descriptor()?),
        "fsync" | "fdatasync" => Call::Synced(of_descriptor()?),
        "mkdir" => Call::Made(named().next()?),
        "rename" | "renameat" | "renameat2" => {
            let mut names = named();
            Call::Renamed(names.next()?, names.next()?)
        }
        _ => return None,
    })
}

#[test]
fn what_appears_in_a_run_is_on_the_disk() {
    if !traces() {
        return;
    }
    let here = Workspace::new();
    here.write("config.yaml", CONFIG);
    let calls = calls(&here, &["train", "config.yaml", "--no-progress"]);
    let synced = |calls: &[Call], path: &Path| calls.contains(&Call::Synced(path.to_owned()));
    let mut made = BTreeSet::new();
    for (at, call) in calls.iter().enumerate() {
        let Call::Made(path) = call else {
            continue;
        };
        let name = path.strip_prefix(here.path("")).unwrap().to_str().unwrap();
        // Those are synced before they get their name, and their parent after.
        if !name.contains("tmp") {
            assert!(synced(&calls[at..], path.parent().unwrap()), "{path:?}");
            made.insert(name);
        }
    }
    let expected = [
        "run",
        "run/adapters",
        "run/adapters/shout",
        "run/checkpoints",
    ];
    assert_eq!(made, BTreeSet::from(expected));
    let mut appeared = BTreeSet::new();
    for (at, call) in calls.iter().enumerate() {
        let Call::Renamed(from, to) = call else {
            continue;
        };
        let name = to.strip_prefix(here.path("run")).unwrap();
        let aside = name.to_str().unwrap().contains("old");
        // A page is made again from the events.
        if aside || name == Path::new("report.html") {
            continue;
        }
        let (before, after) = calls.split_at(at);
        // When something was last written into a file or a directory: names come again with every save.
        let mut parts: BTreeMap<&Path, usize> = BTreeMap::new();
        for (at, call) in before.iter().enumerate() {
            if let Call::Written(file) = call
                && file.starts_with(from)
            {
                parts.extend([(file.as_path(), at), (from.as_path(), at)]);
                if file != from {
                    parts.insert(file.parent().unwrap(), at);
                }
            }
        }
        assert!(!parts.is_empty(), "nothing is written into {from:?}");
        for (part, written) in parts {
            let later = &before[written..];
            assert!(synced(later, part), "{} before {to:?}", part.display());
        }
        assert!(synced(after, to.parent().unwrap()), "after {to:?}");
        appeared.insert(name.to_str().unwrap());
    }
    let expected = [
        "adapters/shout/last",
        "checkpoints/0",
        "checkpoints/15",
        "checkpoints/30",
        "checkpoints/40",
        "config.resolved.yaml",
    ];
    assert_eq!(appeared, BTreeSet::from(expected));
}

#[test]
fn what_a_server_accepts_is_on_the_disk() {
    if !traces() {
        return;
    }
    let here = Workspace::new();
    here.write("config.yaml", CONFIG);
    // With a server there, the submitting process is not the last one that closes the queue, which syncs.
    let server = CONFIG.split("datasets").next().unwrap();
    here.write("server.yaml", server);
    let _server = Server::start(&here, &["--config", "server.yaml"]);
    served(&here);
    let calls = calls(&here, &["submit", "run", "config.yaml"]);
    let log = here.path("run/queue.sqlite-wal");
    let last = |call: Call| calls.iter().rposition(|found| *found == call);
    let written = last(Call::Written(log.clone()));
    assert!(written.is_some(), "{calls:?}");
    assert!(last(Call::Synced(log)) > written, "{calls:?}");
}

/// Every sync takes 0.2 seconds, a checkpoint more than ten times that, and a step far less.
#[test]
fn training_goes_on_while_a_slow_disk_takes_a_checkpoint() {
    if !traces() {
        return;
    }
    let here = Workspace::new();
    here.write("config.yaml", CONFIG);
    let strace = "strace -f -qq --trace=fsync --inject=fsync:delay_enter=200000 -o /dev/null";
    let strace: Vec<&str> = strace.split(' ').collect();
    let mut train = here.command_under(&strace, &["train", "config.yaml", "--no-progress"]);
    let output = train.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let events = fs::read_to_string(here.path("run/events.jsonl")).unwrap();
    let mut trained = 0;
    for event in events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
    {
        let event: Value = event;
        match event["event"].as_str().unwrap() {
            "iteration" => trained = event["iteration"].as_u64().unwrap(),
            "run_checkpoint" if event["iteration"] == 15 => {
                assert!(trained >= 20, "{trained} iterations when it was there");
                return;
            }
            _ => {}
        }
    }
    panic!("no checkpoint after 15 steps: {events}");
}
