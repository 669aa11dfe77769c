//! Machines of their own, as far as the network goes: a controller and two workers in three network
//! namespaces, each two of which are connected by a link of 1 Gbit/s.
//!
//! Namespaces are root's. Where they cannot be made the tests say so and check nothing.

use std::{
    io::Write,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use crate::{
    cluster::{
        Worker, assert_whole, ended, stderr, train, train_in, trained, wait_for_saves, workspace,
    },
    support::Workspace,
};

const CONTROLLER: usize = 0;
const FIRST: usize = 1;
const SECOND: usize = 2;

/// Three namespaces, which are gone with this.
struct Network {
    names: [String; 3],
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("{program} {}: {said}", arguments.join(" ")))
}

fn address(place: usize) -> String {
    format!("10.77.0.{}", place + 1)
}

/// The interface of a namespace that leads to another one.
fn interface(to: usize) -> String {
    format!("to{to}")
}

impl Network {
    /// Namespaces with an address each, and a link between any two.
    fn new() -> Result<Self, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let network = Self {
            names: [0, 1, 2].map(|place| format!("loraloom-{process}-{number}-{place}")),
        };
        for (place, name) in network.names.iter().enumerate() {
            run("ip", &["netns", "add", name])?;
            run("ip", &["-n", name, "link", "set", "lo", "up"])?;
            let address = format!("{}/32", address(place));
            run("ip", &["-n", name, "address", "add", &address, "dev", "lo"])?;
        }
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            network.connect(one, other)?;
        }
        Ok(network)
    }

    fn connect(&self, one: usize, other: usize) -> Result<(), String> {
        let (here, there) = (&self.names[one], &self.names[other]);
        let (up, down) = (interface(other), interface(one));
        run(
            "ip",
            &[
                "link", "add", &up, "netns", here, "type", "veth", "peer", "name", &down, "netns",
                there,
            ],
        )?;
        for (name, interface, from, to) in [(here, up, one, other), (there, down, other, one)] {
            let (from, to) = (address(from), format!("{}/32", address(to)));
            run("ip", &["-n", name, "link", "set", &interface, "up"])?;
            run(
                "ip",
                &[
                    "-n", name, "route", "add", &to, "dev", &interface, "src", &from,
                ],
            )?;
            run(
                "tc",
                &[
                    "-n", name, "qdisc", "add", "dev", &interface, "root", "tbf", "rate", "1gbit",
                    "burst", "512kb", "latency", "60ms",
                ],
            )?;
        }
        Ok(())
    }

    /// Takes the link between two namespaces down, at the side of the first.
    fn cut(&self, one: usize, other: usize) {
        let (name, interface) = (&self.names[one], interface(other));
        run("ip", &["-n", name, "link", "set", &interface, "down"]).unwrap();
    }

    fn worker(&self, workspace: &Workspace, place: usize) -> Worker {
        let listen = format!("{}:0", address(place));
        let identity = format!("worker-{place}");
        let namespace = Some(self.names[place].as_str());
        Worker::start_at(workspace, namespace, (&listen, &identity, "tiny-llama"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run("ip", &["netns", "delete", name]);
        }
    }
}

/// A network, or `None` and a line about why not where namespaces cannot be made. Where they must be,
/// `LORALOOM_TEST_NAMESPACES` is set.
fn network(test: &str) -> Option<Network> {
    match Network::new() {
        Ok(network) => Some(network),
        Err(reason) => {
            // Past what the test harness keeps to itself.
            let line = format!("skipped: {test}: no network namespaces here: {reason}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            assert!(
                std::env::var_os("LORALOOM_TEST_NAMESPACES").is_none(),
                "{line}"
            );
            None
        }
    }
}

#[test]
fn a_run_over_three_machines_is_the_same_as_one_here() {
    let Some(network) = network("a_run_over_three_machines_is_the_same_as_one_here") else {
        return;
    };
    let workspace = workspace();
    let workers = [FIRST, SECOND].map(|place| network.worker(&workspace, place));
    let addresses = [workers[0].address.as_str(), workers[1].address.as_str()];
    let namespace = Some(network.names[CONTROLLER].as_str());
    let over = train_in(&workspace, namespace, &addresses, ("over", 8));
    let (code, stderr) = ended(over);
    assert_eq!(code, 0, "{stderr}");
    let (code, stderr) = ended(train(&workspace, &["cpu"], "here", 8));
    assert_eq!(code, 0, "{stderr}");
    let (over, here) = (
        trained(&workspace.path("over")),
        trained(&workspace.path("here")),
    );
    assert_eq!(here.0.len(), 6);
    assert!(here.1.len() >= 6 * 8 && here.1.iter().all(|step| step[2].is_number()));
    assert_eq!(over.1, here.1);
    assert!(over.0 == here.0, "adapters differ");
}

/// A link that goes down ends the run within ten seconds; what was saved is whole. `blamed` are the
/// stages that may be named.
fn goes_down(test: &str, (one, other): (usize, usize), blamed: &[usize]) {
    let Some(network) = network(test) else {
        return;
    };
    let workspace = workspace();
    let workers = [FIRST, SECOND].map(|place| network.worker(&workspace, place));
    let addresses = [workers[0].address.as_str(), workers[1].address.as_str()];
    let namespace = Some(network.names[CONTROLLER].as_str());
    let run = train_in(&workspace, namespace, &addresses, ("run", 100_000))
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_saves(&workspace.path("run"));
    network.cut(one, other);
    let begun = Instant::now();
    let output = run.wait_with_output().unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    let stderr = stderr(&output);
    assert_eq!(
        output.status.code(),
        Some(75),
        "after {seconds} s: {stderr}"
    );
    assert!(seconds < 10.0, "{seconds} s");
    let named = |stage: &usize| {
        let lost = format!("stage {stage} on {} is lost", addresses[*stage]);
        stderr.contains(&lost)
    };
    assert!(blamed.iter().any(named), "{stderr}");
    assert_whole(&workspace.path("run"));
}

#[test]
fn a_link_to_the_controller_that_goes_down_ends_the_run() {
    let test = "a_link_to_the_controller_that_goes_down_ends_the_run";
    goes_down(test, (CONTROLLER, FIRST), &[0]);
    goes_down(test, (SECOND, CONTROLLER), &[1]);
}

/// The controller reaches both ends, and learns only from them that something is wrong.
#[test]
fn a_link_between_stages_that_goes_down_ends_the_run() {
    let test = "a_link_between_stages_that_goes_down_ends_the_run";
    goes_down(test, (FIRST, SECOND), &[0, 1]);
}
