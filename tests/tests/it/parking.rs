//! A task that is parked and goes on, however often, ends as the task that nobody disturbed.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use burn::tensor::Device;
use loraloom_config::RunConfig;
use loraloom_scheduler::{Member, Refusal, Room, Task, TaskId};
use loraloom_tests::{
    Deeper, Fixture, RandomRoom, TrainedRun, assert_same_training, device, scheduler, train,
    train_with,
};
use loraloom_trainer::{Event, Outcome, Run, TrainerError};
use serde_json::{Value, json};

/// Steps of each adapter, and how often the first one is parked at least. On a GPU, which may be a
/// software device, a tenth; of the first adapter a fifth, since few random draws differ more from their mean.
fn steps(index: usize) -> usize {
    let first = if scale() == 1 { 220 } else { 440 };
    [first, 240, 60, 300][index] / scale()
}

fn scale() -> usize {
    if device() == Device::flex() { 1 } else { 10 }
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// An adapter that differs from the others, with dropout, and two batches in a step.
fn adapter(index: usize) -> Value {
    let targets: &[&str] = if index == 2 {
        &["q_proj", "lm_head", "embed_tokens"]
    } else {
        &["all-linear"]
    };
    let rank = [4, 2, 8, 3][index];
    json!({
        "name": NAMES[index], "dataset": "data", "seed": 11 + index,
        "lora": {"r": rank, "lora_alpha": 8, "lora_dropout": 0.2,
                 "target_modules": targets},
        "train": {"batch_size": 1 + index % 2, "gradient_accumulation_steps": 2, "max_seq_len": 32,
                  "max_steps": steps(index), "learning_rate": 2e-3, "warmup_steps": 5},
        "save": {"steps": 1000},
    })
}

/// The bundled model, which has four layers, over rows of a fixture.
fn config(adapters: &[Value], stages: usize, output_dir: &Path) -> Value {
    let mut config = Fixture::open("llama-gqa").config(adapters, output_dir);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/tiny-llama");
    config["model"] = json!(model);
    config["pipeline"] = json!({"stages": vec!["cpu"; stages], "microbatches": 2});
    config
}

fn parked(run: &TrainedRun, name: &str) -> usize {
    let parked = run
        .events
        .iter()
        .filter(|event| matches!(event, Event::Park { adapter, .. } if adapter == name));
    parked.count()
}

fn parking_changes_nothing(stages: usize) {
    let adapters: Vec<Value> = (0..NAMES.len()).map(adapter).collect();
    let run = train_with(RandomRoom::restless(stages), |output_dir| {
        config(&adapters, stages, output_dir)
    });
    assert_undisturbed(&run, &adapters, config);
}

/// Every adapter was parked and is as it would have been alone on one stage.
fn assert_undisturbed(
    run: &TrainedRun,
    adapters: &[Value],
    config: impl Fn(&[Value], usize, &Path) -> Value,
) {
    for (index, name) in NAMES.into_iter().enumerate() {
        assert_eq!(run.report.adapters[index].outcome, Outcome::Done);
        let alone = std::slice::from_ref(&adapters[index]);
        let alone = train(|output_dir| config(alone, 1, output_dir));
        assert_same_training(name, run, &alone);
    }
    let times = NAMES.map(|name| parked(run, name));
    assert!(times[0] >= 100 / scale(), "parked {times:?} times");
}

/// The bits of a run that nobody disturbed, on one stage.
#[test]
fn parked_a_hundred_times_on_one_stage() {
    parking_changes_nothing(1);
}

/// And on two, with random groups.
#[test]
fn parked_a_hundred_times_on_two_stages() {
    parking_changes_nothing(2);
}

/// And on three that groups have their layers on in different ways: a task goes on where its layers
/// are elsewhere.
#[test]
fn parked_a_hundred_times_on_staggered_stages() {
    let model = Deeper::new(7);
    let adapters: Vec<Value> = (0..NAMES.len()).map(adapter).collect();
    let config = |adapters: &[Value], stages: usize, output_dir: &Path| {
        let mut config = config(adapters, stages, output_dir);
        config["model"] = json!(model.path());
        config["pipeline"]["balance"] = if stages > 1 {
            json!([[3, 2, 2], [2, 3, 2], [2, 2, 3]])
        } else {
            json!("auto")
        };
        config
    };
    let run = train_with(RandomRoom::restless(3), |output_dir| {
        config(&adapters, 3, output_dir)
    });
    assert!(run.partitions().is_some_and(|all| all.len() == 3));
    assert_undisturbed(&run, &adapters, config);
}

/// Its first decision is right; then it names these groups.
struct Wrong {
    decided: usize,
    named: Vec<Vec<Member>>,
    placed: Vec<TaskId>,
}

impl Wrong {
    fn naming(named: Vec<Vec<Member>>) -> Self {
        Self {
            decided: 0,
            named,
            placed: Vec::new(),
        }
    }
}

impl Room for Wrong {
    fn clear(&mut self) {
        self.placed.clear();
    }

    fn place(&mut self, task: &Task, _: Option<usize>) -> Result<usize, Refusal> {
        self.placed.push(task.id);
        Ok(0)
    }

    fn remove(&mut self, task: TaskId) {
        self.placed.retain(|&placed| placed != task);
    }

    fn regroup(&mut self) -> Option<String> {
        self.decided += 1;
        None
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        let member = |&task: &TaskId| Member { task, parts: 1 };
        match self.decided {
            1 => vec![self.placed.iter().map(member).collect()],
            _ => self.named.clone(),
        }
    }

    fn learns_after(&self, _admitted: bool, _waiting: bool) -> Option<usize> {
        Some(1)
    }
}

fn group(tasks: &[u64]) -> Vec<Member> {
    let member = |&task: &u64| Member {
        task: TaskId(task),
        parts: 1,
    };
    tasks.iter().map(member).collect()
}

#[test]
fn groups_that_contradict_what_runs_are_refused() {
    let no_parts = Member {
        task: TaskId(0),
        parts: 0,
    };
    for (wrong, problem) in [
        (vec![], "task 0 runs and is in no group"),
        (
            vec![group(&[0, 1]), group(&[0])],
            "task 0 is in a group twice",
        ),
        (
            vec![group(&[0, 7])],
            "task 7 is in a group twice, or does not run",
        ),
        (
            vec![vec![no_parts]],
            "task 0 must train in at least 1 part, not 0",
        ),
    ] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let adapters: Vec<Value> = (0..2).map(adapter).collect();
        let config = config(&adapters, 1, &directory.path().join("run"));
        let path = directory.path().join("config.json");
        fs::write(&path, config.to_string()).expect("the configuration is written");
        let config = RunConfig::load(&path, &[])
            .expect("a valid configuration")
            .config;
        let error = Run::prepare(config, &[device()])
            .expect("the run is prepared")
            .train_with(
                scheduler(Wrong::naming(wrong)),
                &AtomicBool::new(false),
                &mut |_| {},
            )
            .expect_err("a wrong decision");
        assert!(matches!(error, TrainerError::Decision { .. }), "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

/// Parks the second task, goes on with the first, and then names what cannot be.
struct Breaks {
    decided: usize,
    placed: Vec<TaskId>,
}

impl Room for Breaks {
    fn clear(&mut self) {
        self.placed.clear();
    }

    fn place(&mut self, task: &Task, _: Option<usize>) -> Result<usize, Refusal> {
        if self.decided > 0 && task.id == TaskId(1) {
            let reason = "it is its turn to wait".to_owned();
            return Err(Refusal { reason });
        }
        self.placed.push(task.id);
        Ok(0)
    }

    fn remove(&mut self, task: TaskId) {
        self.placed.retain(|&placed| placed != task);
    }

    fn regroup(&mut self) -> Option<String> {
        self.decided += 1;
        None
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        let member = |&task: &TaskId| Member { task, parts: 1 };
        match self.decided {
            1..=3 => vec![self.placed.iter().map(member).collect()],
            _ => vec![group(&[99])],
        }
    }

    fn learns_after(&self, _admitted: bool, _waiting: bool) -> Option<usize> {
        (self.decided == 3).then_some(1)
    }
}

/// What has run until then is as the last checkpoint has it, for its steps may be lost; what is parked is
/// as it is.
#[test]
fn an_error_keeps_what_is_parked_and_what_was_saved() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut adapters = [0, 1].map(adapter);
    adapters[0]["save"]["steps"] = json!(3);
    adapters[0]["train"]["gradient_accumulation_steps"] = json!(1);
    adapters[1]["train"]["gradient_accumulation_steps"] = json!(1);
    let run_directory = directory.path().join("run");
    let config = config(&adapters, 1, &run_directory);
    let path = directory.path().join("config.json");
    fs::write(&path, config.to_string()).expect("the configuration is written");
    let loaded = RunConfig::load(&path, &[]).expect("a valid configuration");
    let run = Run::prepare(loaded.config, &[device()]).expect("the run is prepared");
    let breaks = Breaks {
        decided: 0,
        placed: Vec::new(),
    };
    let ended = run.train_with(scheduler(breaks), &AtomicBool::new(false), &mut |_| {});
    assert!(
        matches!(ended, Err(TrainerError::Decision { .. })),
        "{ended:?}"
    );
    let record = fs::read(run_directory.join("checkpoints/7/run.json")).expect("a checkpoint");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    // Iterations without a pause end at step 3, when both are seen to have moved, and at the save.
    let steps = |index: usize| &record["tasks"][index]["step"];
    assert_eq!([steps(0), steps(1)], [&json!(6), &json!(3)]);
}
