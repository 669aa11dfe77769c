use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use loraloom_trainer::Event;

use super::{
    Progress,
    line::{LastPlainLine, PLAIN_INTERVAL},
};
use crate::{
    arguments::OutputArguments,
    frame::{Row, Size},
    printer::Printer,
};

fn admit(adapter: &str, step: usize, total_steps: usize) -> Event {
    Event::Admit {
        adapter: adapter.to_owned(),
        step,
        total_steps,
        reason: String::new(),
    }
}

fn step(adapter: &str, step: usize) -> Event {
    Event::Step {
        iteration: 1,
        adapter: adapter.to_owned(),
        step,
        total_steps: 0,
        loss: 1.93,
        target_tokens: 1024,
        tokens: 4096,
        grad_norm: 0.7,
        learning_rate: 2.9e-4,
        group: 0,
        rewards: None,
    }
}

fn iteration(seconds: f64) -> Event {
    Event::Iteration {
        iteration: 1,
        seconds,
        tokens: 8192,
        tokens_per_second: 8192.0 / seconds,
        bubble_ratio: None,
        transfer_seconds: None,
        transfer_overlap: None,
        bytes_reserved: None,
        bytes_predicted: None,
        groups: Vec::new(),
        parts: BTreeMap::new(),
    }
}

fn quiet() -> Printer {
    Printer::new(&OutputArguments {
        quiet: true,
        no_progress: true,
    })
}

fn frame(progress: &Progress<'_>, columns: usize, now: Instant) -> String {
    progress.frame(Size { columns, lines: 24 }, now).join("\n")
}

#[test]
fn the_time_left_is_that_of_the_slowest_and_of_those_to_come() {
    let printer = quiet();
    let mut progress = Progress::new(&printer, &[(0, 20), (0, 60), (0, 20)]);
    let began = progress.began;
    let at = |seconds: f64| began + Duration::from_secs_f64(seconds);
    progress.show_at(&admit("shout-r4", 0, 20), at(0.0));
    progress.show_at(&admit("b", 0, 60), at(0.0));
    for number in 1..=10 {
        progress.show_at(&step("shout-r4", number), at(0.0));
        progress.show_at(&step("b", number), at(0.0));
        progress.show_at(&iteration(0.5), at(number as f64 * 0.5));
    }
    insta::assert_snapshot!(frame(&progress, 80, at(5.0)), @"
    shout-r4 ███████████████████░░░░░░░░░░░░░░░░░░░░  10/20 | loss 1.9300 | 5s left
    b        ██████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  10/60 | loss 1.9300 | 25s left
    all      ███████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 20/100 | 16384 tok/s | 25s left
    ");
    let done = Event::AdapterDone {
        adapter: "shout-r4".to_owned(),
        step: 10,
        reason: String::new(),
    };
    progress.show_at(&done, at(5.0));
    let park = Event::Park {
        adapter: "b".to_owned(),
        step: 10,
        reason: String::new(),
        by: None,
    };
    progress.show_at(&park, at(5.0));
    insta::assert_snapshot!(frame(&progress, 120, at(65.0)), @"
    b   ██████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 10/60 | loss 1.9300 | parked   | grad_norm 0.700 | lr 2.90e-4  | 8192 tok/s
    all ████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 20/90 | 16384 tok/s | 18s left | 1 of 3 done     | after 1m05s
    ");
}

#[test]
fn plain_lines_come_at_both_ends_every_tenth_and_after_a_while() {
    let now = Instant::now();
    let mut last_plain = LastPlainLine::default();
    let row = |step| Row {
        name: String::new(),
        step,
        total_steps: 100,
        trains: true,
        cells: Vec::new(),
        more: Vec::new(),
    };
    let due: Vec<usize> = (1..=100)
        .filter(|&step| last_plain.is_due(&row(step), now))
        .collect();
    assert_eq!(due, [1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
    let mut last_plain = LastPlainLine(Some((41, now)));
    assert!(!last_plain.is_due(&row(42), now));
    assert!(last_plain.is_due(&row(42), now + PLAIN_INTERVAL));
}
