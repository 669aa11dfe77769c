//! Memory that runs out in the middle of a run: nobody is lost, and nobody's numbers change.

use std::{
    fs,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use loraloom_config::RunConfig;
use loraloom_pipeline::HostMemory;
use loraloom_scheduler::Room;
use loraloom_tests::{
    FixedGroups, Fixture, Random, RandomRoom, TrainedRun, device, losses, train, train_and_look,
};
use loraloom_trainer::{Event, Outcome, Run, SavedRun};
use serde_json::{Value, json};

/// What the allocator is said to hold: a stub that is set from outside.
static HELD: AtomicU64 = AtomicU64::new(1_000);

const LIMIT: u64 = 1 << 30;

fn adapter(index: usize) -> Value {
    json!({
        "name": format!("a{index}"), "dataset": "data", "seed": index, "priority": index % 2,
        "lora": {"r": 2 + index, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": "all-linear"},
        "train": {"batch_size": 2, "max_seq_len": 32, "max_steps": 40, "learning_rate": 2e-3},
        "save": {"steps": 1000},
    })
}

fn config(output_dir: &Path) -> Value {
    let adapters: Vec<Value> = (0..3).map(adapter).collect();
    let mut config = Fixture::open("llama-gqa").config(&adapters, output_dir);
    config["device"] = json!("cpu");
    config["scheduler"] = json!({"memory_limit": "1GiB"});
    config
}

/// Tests take turns: there is one allocator.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    HostMemory {
        in_use: || 1_000,
        peak: || HELD.load(Ordering::Relaxed),
        take_peak: || 1_000,
    }
    .count_with();
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Trains, and once `cut` says so of an event somebody else takes the memory away, until that is felt.
fn cut_short<R: Room>(
    room: Option<R>,
    configuration: impl FnOnce(&Path) -> Value,
    cut: impl Fn(&Event) -> bool,
) -> TrainedRun {
    let mut cuts = 0;
    let mut observer = |event: &Event| {
        if cuts < 1 && cut(event) {
            cuts += 1;
            HELD.store(LIMIT + 1, Ordering::Relaxed);
        }
        if matches!(event, Event::OutOfMemory { .. }) {
            HELD.store(1_000, Ordering::Relaxed);
        }
    };
    let run = train_and_look(room, configuration, &mut observer);
    let ran_out = |event: &&Event| matches!(event, Event::OutOfMemory { .. });
    assert_eq!(run.events.iter().filter(ran_out).count(), 1);
    let halved = |event: &Event| {
        let Event::OutOfMemory {
            microbatch_rows, ..
        } = event
        else {
            return false;
        };
        microbatch_rows.is_some()
    };
    assert!(!run.events.iter().any(halved), "several tasks ran");
    run
}

fn assert_nobody_changed(run: &TrainedRun, undisturbed: &TrainedRun) {
    // Those of steps that were taken again count once.
    assert_eq!(run.report.tokens, undisturbed.report.tokens);
    for adapter in &run.report.adapters {
        assert_eq!(
            (&adapter.outcome, adapter.steps),
            (&Outcome::Done, adapter.total_steps),
            "{}",
            adapter.name
        );
        // Events tell of steps twice that were taken again.
        let name = &adapter.name;
        assert!(run.adapter(name) == undisturbed.adapter(name), "{name}");
    }
}

fn parked(run: &TrainedRun) -> Option<&str> {
    run.events.iter().find_map(|event| match event {
        Event::OutOfMemory { parked, .. } => parked.as_deref(),
        _ => None,
    })
}

#[test]
fn memory_that_runs_out_parks_one_task_and_changes_nobody() {
    let _turn = turn();
    let undisturbed = train(config);
    let run = cut_short(None::<FixedGroups>, config, |event| {
        matches!(event, Event::Iteration { iteration: 9, .. })
    });
    // The lowest priority, and of those the one that came last.
    assert_eq!(parked(&run), Some("a2"));
    assert_nobody_changed(&run, &undisturbed);
}

/// What the others may have is not less because of the one that was parked.
#[test]
fn a_parked_neighbour_takes_no_memory_of_those_that_train() {
    let _turn = turn();
    let mut ran_out = 0;
    let mut observer = |event: &Event| {
        let held = match event {
            // There was a snapshot after 32 iterations.
            Event::Iteration { iteration: 36, .. } if ran_out == 0 => LIMIT + 1,
            Event::OutOfMemory { .. } => {
                ran_out += 1;
                // Less than what waits.
                LIMIT + 1_000
            }
            // Only `a2` comes back.
            Event::Admit { step: 1.., .. } => 1_000,
            _ => return,
        };
        HELD.store(held, Ordering::Relaxed);
    };
    let saving = |output_dir: &Path| {
        let mut config = config(output_dir);
        for adapter in config["adapters"].as_array_mut().into_iter().flatten() {
            adapter["save"]["steps"] = json!(4);
        }
        config
    };
    let run = train_and_look(None::<FixedGroups>, saving, &mut observer);
    HELD.store(1_000, Ordering::Relaxed);
    assert_eq!(ran_out, 1);
    for adapter in &run.report.adapters {
        assert_eq!(adapter.outcome, Outcome::Done, "{}", adapter.name);
    }
}

/// Steps of four batches, of which each iteration trains one, beside a task with whole steps.
#[test]
fn memory_that_runs_out_in_the_middle_of_a_step_changes_nobody() {
    let _turn = turn();
    let in_parts = |output_dir: &Path| {
        let mut config = config(output_dir);
        config["adapters"][0]["train"]["gradient_accumulation_steps"] = json!(4);
        config["adapters"][1]["priority"] = json!(0);
        if let Some(adapters) = config["adapters"].as_array_mut() {
            adapters.truncate(2);
        }
        config
    };
    let undisturbed = train(in_parts);
    for last_part in 1..=3 {
        let room = FixedGroups::new(vec![vec![4, 1]], None);
        let run = cut_short(Some(room), in_parts, |event| {
            let Event::Iteration {
                iteration, parts, ..
            } = event
            else {
                return false;
            };
            *iteration > 8 && parts.get("a0") == Some(&[last_part, 4])
        });
        assert_eq!(parked(&run), Some("a1"), "after part {last_part}");
        assert_nobody_changed(&run, &undisturbed);
    }
}

/// Also while tasks come, go and move, and twice without a step between. In a round in which a task happens
/// to be alone it goes on with smaller micro-batches, whose sums differ a little.
#[test]
fn memory_that_runs_out_at_any_time_changes_nobody() {
    let _turn = turn();
    let of_four_rows = |output_dir: &Path| {
        let mut config = config(output_dir);
        for adapter in config["adapters"].as_array_mut().into_iter().flatten() {
            adapter["train"]["batch_size"] = json!(4);
        }
        config
    };
    let undisturbed = train(of_four_rows);
    let (mut random, mut ran_out, mut rounds, mut exact) = (Random::seeded(), 0, 0, 0);
    while rounds < 3 || exact == 0 || ran_out <= 5 {
        rounds += 1;
        assert!(rounds < 30, "a task was alone in every round");
        let mut halvings = 0;
        let mut observer = |event: &Event| {
            let runs_out = match event {
                Event::OutOfMemory { parked, .. } => {
                    ran_out += 1;
                    halvings += usize::from(parked.is_none());
                    parked.is_some() && random.below(3) == 0
                }
                Event::Iteration { groups, .. } => {
                    // Four rows are halved twice at most.
                    groups.concat().len() > 1 && halvings < 2 && random.below(3) == 0
                }
                _ => return,
            };
            HELD.store(if runs_out { LIMIT + 1 } else { 1_000 }, Ordering::Relaxed);
        };
        let run = train_and_look(Some(RandomRoom::splitting(2)), of_four_rows, &mut observer);
        if halvings > 0 {
            for adapter in &run.report.adapters {
                assert_eq!(adapter.outcome, Outcome::Done, "{}", adapter.name);
                assert_close(&run.events, &undisturbed.events, &adapter.name);
            }
        } else {
            exact += 1;
            assert_nobody_changed(&run, &undisturbed);
        }
    }
    assert!(ran_out > 5, "{ran_out}");
}

/// Memory that stays away: nothing smaller is left to try than micro-batches of a row.
#[test]
fn a_task_that_does_not_fit_alone_and_row_by_row_says_so() {
    let _turn = turn();
    let alone = |output_dir: &Path| {
        let mut config = config(output_dir);
        config["adapters"] = json!([adapter(0)]);
        config
    };
    HELD.store(LIMIT + (1 << 29), Ordering::Relaxed);
    let run = train_and_look(None::<FixedGroups>, alone, &mut |_| {});
    HELD.store(1_000, Ordering::Relaxed);
    let Outcome::Failed {
        reason,
        does_not_fit: true,
    } = &run.report.adapters[0].outcome
    else {
        panic!("{:?}", run.report.adapters[0].outcome);
    };
    let begin = "does not fit even alone with one row per micro-batch: out of memory: the stage of \
                 layers 0..";
    assert!(reason.starts_with(begin), "{reason}");
    assert!(reason.ends_with(" took 1.50 GiB of 1.00 GiB"), "{reason}");
}

fn assert_close(found: &[Event], expected: &[Event], name: &str) {
    let last = |events: &[Event]| losses(events, name).pop().expect("a last step");
    for (found, expected) in last(found).iter().zip(last(expected)) {
        assert!(
            (found - expected).abs() < 1e-4 * expected,
            "{name}: {found} {expected}"
        );
    }
}

/// A batch of eight rows becomes two of four and, before the next step, four of two; after a restart eight
/// of one. The sums are taken in another order then, and nothing else changes.
#[test]
fn a_task_alone_goes_on_with_half_the_rows_also_after_a_restart() {
    let _turn = turn();
    let alone = |output_dir: &Path| {
        let mut config = config(output_dir);
        config["adapters"] = json!([adapter(0)]);
        config["adapters"][0]["train"]["batch_size"] = json!(8);
        config
    };
    let undisturbed = train(alone);

    let directory = tempfile::tempdir().expect("a temporary directory");
    let output_dir = directory.path().join("run");
    let path = directory.path().join("config.json");
    fs::write(&path, alone(&output_dir).to_string()).expect("the configuration is written");
    let load = || {
        RunConfig::load(&path, &[])
            .expect("a valid configuration")
            .config
    };
    let (mut halved, mut events) = (Vec::new(), Vec::new());
    for (cut, end) in [(9, 20), (25, u64::MAX)] {
        let run = match SavedRun::claim(&output_dir) {
            Ok(saved) => Run::resume(load(), &[device()], saved),
            Err(_) => Run::prepare(load(), &[device()]),
        };
        let (stop, mut ran_out) = (AtomicBool::new(false), false);
        run.expect("the run is prepared")
            .train(&stop, &mut |event| {
                match event {
                    Event::Iteration { iteration, .. } if *iteration >= cut && !ran_out => {
                        HELD.store(LIMIT + 1, Ordering::Relaxed);
                    }
                    Event::Iteration { iteration, .. } if *iteration == end => {
                        stop.store(true, Ordering::Relaxed);
                    }
                    Event::OutOfMemory {
                        parked,
                        microbatch_rows,
                        ..
                    } => {
                        assert_eq!(*parked, None);
                        ran_out = true;
                        halved.extend(*microbatch_rows);
                        if halved.len() > 1 {
                            HELD.store(1_000, Ordering::Relaxed);
                        }
                    }
                    _ => {}
                }
                events.push(event.clone());
            })
            .expect("the run ends");
    }
    assert_eq!(halved, [4, 2, 1]);

    let done = |event: &Event| matches!(event, Event::AdapterDone { step: 40, .. });
    assert_eq!(events.iter().filter(|event| done(event)).count(), 1);
    assert_close(&events, &undisturbed.events, "a0");
}
