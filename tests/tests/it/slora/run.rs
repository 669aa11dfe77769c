//! Runs of adapters with one start: what it changes, what it leaves, and what it brings.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use loraloom_config::RunConfig;
use loraloom_model::PeftAdapter;
use loraloom_scheduler::{MeasuredIteration, Member, Refusal, Room, Task, TaskId};
use loraloom_tests::{
    FixedGroups, Fixture, TrainedRun, assert_same_training, device, losses, scheduler, train,
    train_with,
};
use loraloom_trainer::{Event, Outcome, Run, SavedRun};
use serde_json::{Value, json};

use super::{adapter, client, config, run};

fn starts(events: &[Event]) -> Vec<&Event> {
    let is_start = |event: &&Event| matches!(event, Event::StartValues { .. });
    events.iter().filter(is_start).collect()
}

/// A room in which each task has a group of its own, and is refused for as many iterations as tasks have arrived before.
#[derive(Debug)]
struct Late {
    room: FixedGroups,
    iterations: u64,
}

impl Room for Late {
    fn clear(&mut self) {
        self.room.clear();
    }

    fn place(&mut self, task: &Task, group: Option<usize>) -> Result<usize, Refusal> {
        if task.arrival > self.iterations {
            let reason = "too early".to_owned();
            return Err(Refusal { reason });
        }
        self.room.place(task, group)
    }

    fn remove(&mut self, task: TaskId) {
        self.room.remove(task);
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        self.room.groups()
    }

    fn learns_after(&self, admitted: bool, waiting: bool) -> Option<usize> {
        self.room.learns_after(admitted, waiting)
    }

    fn measured(&mut self, _: &MeasuredIteration) {
        self.iterations += 1;
    }
}

/// Neither the order of the adapters, nor stages, nor the time at which a client begins change anything, and other adapters
/// keep their bits.
#[test]
fn a_common_start_changes_nothing_else() {
    let model = Fixture::open("llama-gqa").directory;
    let plain = adapter(
        "plain",
        "b",
        json!({}),
        json!({"max_steps": 6, "gradient_accumulation_steps": 2}),
    );
    let (a, mut b) = (
        client("a", "a", json!({}), json!({})),
        client("b", "b", json!({"r": 6}), json!({})),
    );
    b["train"]["max_steps"] = json!(5);
    let of_group =
        |name: &str, of: &str| client(name, of, json!({}), json!({"group": "other", "rounds": 1}));
    let (c, d) = (of_group("c", "a"), of_group("d", "b"));
    let expected = run(&[a.clone(), b.clone()]);
    let alone = run(std::slice::from_ref(&plain));
    let others = run(&[c.clone(), d.clone()]);
    assert_eq!(starts(&expected.events).len(), 1);
    let Event::StartValues {
        batches,
        decompositions,
        bytes,
        ..
    } = starts(&expected.events)[0]
    else {
        panic!("a start");
    };
    // `a` has one batch of 8 rows, `b` three; a step of each is one. A and B of a change have four values an element.
    let floats = 2 * 4 * (48 * (48 + 48) + 112 * (112 + 48));
    assert_eq!(
        (*batches, *decompositions, *bytes),
        (6, 4, Some(4 * floats))
    );

    let together = [d, b.clone(), plain.clone(), c, a.clone()];
    let in_stages = train(|output_dir| {
        let mut config = config(&model, &together, 1, output_dir);
        config["pipeline"] = json!({"stages": ["cpu", "cpu"]});
        config
    });
    // Each comes an iteration after the one before: the start is trained in the middle of a step of the plain one.
    let room = Late {
        room: FixedGroups::new(vec![vec![2], vec![1], vec![1]], Some(1)),
        iterations: 0,
    };
    let late = train_with(room, |output_dir| {
        config(&model, &[plain, a, b], 1, output_dir)
    });
    let begun = |run: &TrainedRun, name: &str| {
        let is_step =
            |event: &Event| matches!(event, Event::Step { adapter, .. } if adapter == name);
        run.events.iter().position(is_step)
    };
    assert!(begun(&late, "a") < begun(&late, "b"));
    assert_eq!(starts(&late.events).len(), 1);
    for run in [&in_stages, &late] {
        assert_same_training("a", run, &expected);
        assert_same_training("b", run, &expected);
        assert_same_training("plain", run, &alone);
    }
    assert_eq!(starts(&in_stages.events).len(), 2);
    assert_same_training("c", &in_stages, &others);
    assert_same_training("d", &in_stages, &others);
}

/// An interrupted run has the start of a client that has not begun yet.
#[test]
fn a_common_start_is_trained_once() {
    let model = Fixture::open("llama-gqa").directory;
    let clients = ["a", "b"].map(|name| client(name, name, json!({}), json!({})));
    let expected = run(&clients);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let file = path.join("config.json");
    fs::write(
        &file,
        config(&model, &clients, 1, &path.join("run")).to_string(),
    )
    .expect("written");
    let config = || RunConfig::load(&file, &[]).expect("a configuration").config;
    let (stop, mut begins) = (AtomicBool::new(false), 0);
    let begun = Run::prepare(config(), &[device()]).expect("prepared");
    // There is room for the first alone.
    let room = FixedGroups::new(vec![vec![1]], Some(1));
    let report = begun.train_with(scheduler(room), &stop, &mut |event: &Event| {
        if matches!(event, Event::Step { step: 2, .. }) {
            stop.store(true, Ordering::Relaxed);
        }
        begins += usize::from(matches!(event, Event::StartValues { .. }));
    });
    assert!(report.expect("it stops").interrupted);
    let saved = SavedRun::claim(&path.join("run")).expect("a checkpoint");
    let resumed = Run::resume(config(), &[device()], saved).expect("it goes on");
    let report = resumed.train(&AtomicBool::new(false), &mut |event: &Event| {
        begins += usize::from(matches!(event, Event::StartValues { .. }));
    });
    let outcomes = report.expect("it ends").adapters;
    assert!(
        outcomes.iter().all(|one| one.outcome == Outcome::Done),
        "{outcomes:?}"
    );
    assert_eq!(begins, 1);
    for name in ["a", "b"] {
        let saved = path.join("run/adapters").join(name).join("last");
        let saved = PeftAdapter::load(&saved).expect("an adapter");
        assert!(saved == expected.adapter(name), "{name}");
        assert_eq!(saved.config.init_lora_weights, None);
    }
}

/// A client whose start cannot be trained ends with its group; the others train.
#[test]
fn a_group_without_a_start_ends_alone() {
    let wild = |name: &str| {
        client(
            name,
            name,
            json!({}),
            json!({"learning_rate": 3e38, "rounds": 9}),
        )
    };
    let run = run(&[
        wild("a"),
        adapter("plain", "a", json!({}), json!({})),
        wild("b"),
    ]);
    let outcomes: Vec<&Outcome> = run.report.adapters.iter().map(|one| &one.outcome).collect();
    let expected = [
        "its loss is not finite at step 2 of 9",
        "`a` of its group has ended",
    ];
    for (outcome, expected) in [outcomes[0], outcomes[2]].into_iter().zip(expected) {
        let Outcome::Failed { reason, .. } = outcome else {
            panic!("{outcomes:?}");
        };
        let hint = "lower `lora.slora_config.learning_rate`";
        assert!(
            reason.contains(expected) && reason.contains(hint),
            "{reason}"
        );
    }
    assert_eq!(outcomes[1], &Outcome::Done);
}

#[test]
fn a_density_of_no_element_is_refused() {
    let clients = ["a", "b"].map(|name| client(name, name, json!({}), json!({"density": 1e-4})));
    let directory = tempfile::tempdir().expect("a directory");
    let (path, model) = (directory.path(), Fixture::open("llama-gqa").directory);
    let file = path.join("config.json");
    fs::write(
        &file,
        config(&model, &clients, 1, &path.join("run")).to_string(),
    )
    .expect("written");
    let config = RunConfig::load(&file, &[]).expect("a configuration").config;
    let error = Run::prepare(config, &[device()]).expect_err("too sparse");
    let expected = "the density 0.0001 leaves none of the 48 x 48 elements of the smallest module";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert!(error.hint().is_some());
}

/// After as many steps, two clients with labels of their own have lower losses than from random values. Ordinary training
/// that also takes the steps of the start is printed beside it.
#[test]
fn clients_learn_sooner_from_a_common_start() {
    const STEPS: usize = 10;
    const ROUNDS: usize = 20;
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/tiny-llama");
    // The mean loss of both clients over their rows after so many steps; that of a step is that before it.
    let loss = |seed: usize, start: &Value, steps: usize| {
        let adapters = ["a", "b"].map(|name| {
            let modules = ["q_proj", "v_proj", "down_proj"];
            let mut lora =
                json!({"lora_alpha": 8, "target_modules": modules, "init_lora_weights": start});
            if start == "slora" {
                lora["slora_config"] = json!({"rounds": ROUNDS, "learning_rate": 0.05});
            }
            let train = json!({"batch_size": 24, "max_steps": steps + 1, "learning_rate": 0.003});
            adapter(name, name, lora, train)
        });
        let run = train(|output_dir| config(&model, &adapters, seed, output_dir));
        let [a, b] = ["a", "b"].map(|name| losses(&run.events, name)[steps][0]);
        f64::midpoint(a, b)
    };
    for seed in [1, 2, 3] {
        let common = loss(seed, &json!("slora"), STEPS);
        print!("seed {seed}: {STEPS} steps from slora {common:.4}");
        for start in [json!("gaussian"), json!(true)] {
            let [random, longer] = [STEPS, STEPS + ROUNDS].map(|steps| loss(seed, &start, steps));
            print!(
                ", from {start} {random:.4}, {} steps {longer:.4}",
                STEPS + ROUNDS
            );
            assert!(common < random, "seed {seed}: {common} and {random}");
        }
        println!();
    }
}
