//! A process for each test. Burn keeps the thread of a session that has ended, and the thread wakes
//! up some 6 000 times a second (docs/burn-notes.md): with all tests in one process, 200 of them
//! took both cores, and the program twenty minutes.

use std::{env, process::Command, thread};

/// Set for the process that a test has to itself; its value is of no matter.
const ALONE: &str = "LORALOOM_TEST_ALONE";

/// Runs the calling test once more in a process of its own, and fails if it fails there. Whether
/// this was done: in that process it is not, and the test is to go on.
#[expect(clippy::print_stdout, reason = "a test's words are passed on")]
pub(crate) fn done_alone() -> bool {
    if env::var_os(ALONE).is_some() {
        return false;
    }
    let test = thread::current();
    // One after another (`--test-threads=1`), tests run on a thread that does not know them.
    let Some(name) = test.name().filter(|name| *name != "main") else {
        return false;
    };
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--include-ignored", "--nocapture"])
        .env(ALONE, "1")
        .env("TMPDIR", directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{name}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    true
}
