use std::fs::OpenOptions;
use std::io::Write;

use loraloom_report::{Dashboard, RunHistory};
use ratatui::{Terminal, backend::TestBackend};
use serde_json::json;

use crate::support::Log;

fn drawn(dashboard: &Dashboard, history: &RunHistory, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| dashboard.draw(history, "q quits", frame))
        .unwrap();
    terminal.backend().to_string()
}

/// Two adapters with falling losses, one of them parked.
fn log() -> Log {
    let mut log = Log::of(&["a", "b"]);
    for iteration in 1..=6 {
        log.step(iteration, "a", iteration, 4.0 - iteration as f64 / 2.0);
        if iteration < 4 {
            log.step(iteration, "b", iteration, 3.0);
        }
        log.iteration(iteration);
        if iteration == 3 {
            log.write(json!({
                "event": "park", "adapter": "b", "step": 3, "reason": "gives way", "by": "a",
            }));
            log.eval("a", 3, 2.25);
        }
    }
    log.write(json!({"event": "warning", "message": "rows are cut"}));
    log
}

#[test]
fn all_adapters_and_one_of_them() {
    let log = log();
    let history = log.history();
    let mut dashboard = Dashboard::default();
    let name = log.path().file_name().unwrap().to_str().unwrap();
    let shown =
        |dashboard: &Dashboard| drawn(dashboard, &history, 100, 30).replace(name, "directory ");
    insta::assert_snapshot!("all", shown(&dashboard));
    dashboard.select(true, 2);
    insta::assert_snapshot!("one", shown(&dashboard));
    // Through the list, out of it at both ends, and in again.
    dashboard.select(true, 2);
    dashboard.select(true, 2);
    assert_eq!(
        drawn(&dashboard, &history, 100, 30),
        drawn(&Dashboard::default(), &history, 100, 30)
    );
    dashboard.select(false, 2);
    let selected = drawn(&dashboard, &history, 100, 30);
    dashboard.select(false, 2);
    dashboard.select(false, 2);
    dashboard.select(false, 2);
    assert_eq!(drawn(&dashboard, &history, 100, 30), selected);
}

#[test]
fn any_size_and_no_events_are_drawn() {
    let log = log();
    let history = log.history();
    let nothing = RunHistory::default();
    for (width, height) in [(1, 1), (3, 2), (20, 5), (40, 12), (300, 80)] {
        for history in [&history, &nothing] {
            let mut dashboard = Dashboard::default();
            for _ in 0..3 {
                drawn(&dashboard, history, width, height);
                dashboard.select(true, 2);
            }
        }
    }
}

#[test]
fn a_log_that_grows_is_read_on() {
    let log = log();
    let mut history = log.history();
    let lines = history.lines();
    assert!(!history.update().unwrap());
    let path = log.path().join("events.jsonl");
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    // A line is read once it is whole.
    file.write_all(b"{\"v\": 1, \"event\": \"run_end\", ")
        .unwrap();
    assert!(!history.update().unwrap());
    assert!(!history.has_ended());
    file.write_all(b"\"interrupted\": true}\n").unwrap();
    assert!(history.update().unwrap());
    assert!(history.has_ended());
    assert_eq!(history.lines(), (lines.0 + 1, 0));
    let shown = drawn(&Dashboard::default(), &history, 60, 20);
    assert!(shown.contains("interrupted"), "{shown}");
}
