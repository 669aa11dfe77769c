//! A task that is parked and goes on, however often, ends as the task that nobody disturbed.

use std::{collections::BTreeMap, fs, path::Path, sync::atomic::AtomicBool};

use burn::tensor::Device;
use loraloom_config::RunConfig;
use loraloom_scheduler::{
    Admission, Decision, Member, Outcome as TaskOutcome, Parking, Scheduler, SchedulerError, Task,
    TaskId, TaskState,
};
use loraloom_tests::{
    Deeper, Fixture, Random, TrainedRun, assert_same_training, device, train, train_with,
};
use loraloom_trainer::{Event, Outcome, Run, TrainerError};
use serde_json::{Value, json};

/// Steps of each adapter, and how often the first one is parked at least. On a GPU, which may be a
/// software device, a tenth.
fn steps(index: usize) -> usize {
    [220, 240, 60, 300][index] / scale()
}

fn scale() -> usize {
    if device() == Device::flex() { 1 } else { 10 }
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// An adapter that differs from the others, with dropout, and two batches in a step.
fn adapter(index: usize) -> Value {
    let targets: &[&str] = if index == 2 {
        &["q_proj", "v_proj"]
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

/// Parks and resumes whoever it likes, in groups and orders that it likes.
struct Whims {
    random: Random,
    stages: usize,
    tasks: BTreeMap<TaskId, TaskState>,
}

impl Whims {
    fn new(stages: usize) -> Self {
        Self {
            random: Random::seeded(),
            stages,
            tasks: BTreeMap::new(),
        }
    }

    fn shuffled(&mut self, mut tasks: Vec<TaskId>) -> Vec<TaskId> {
        for last in (1..tasks.len()).rev() {
            tasks.swap(last, self.random.below(last + 1));
        }
        tasks
    }
}

impl Scheduler for Whims {
    fn submit(&mut self, task: Task) -> Result<(), SchedulerError> {
        self.tasks.insert(task.id, TaskState::Queued);
        Ok(())
    }

    fn decide(&mut self) -> Decision {
        let open: Vec<(TaskId, TaskState)> = self
            .tasks
            .iter()
            .filter(|(_, state)| !state.is_final())
            .map(|(&task, &state)| (task, state))
            .collect();
        let mut decision = Decision::default();
        if open.is_empty() {
            return decision;
        }
        let tasks = self.shuffled(open.iter().map(|&(task, _)| task).collect());
        // Whoever is first in the shuffled order runs: the pipeline is never empty.
        let running: Vec<TaskId> = tasks
            .into_iter()
            .enumerate()
            .filter(|(index, task)| {
                let ran = self.tasks[task] == TaskState::Running;
                *index == 0 || (!ran && self.random.below(2) == 0)
            })
            .map(|(_, task)| task)
            .collect();
        for (task, state) in open {
            let (runs, ran) = (running.contains(&task), state == TaskState::Running);
            let reason = "a whim".to_owned();
            if ran && !runs {
                let by = Some(running[0]);
                decision.parked.push(Parking { task, by, reason });
                self.tasks.insert(task, TaskState::Queued);
            } else if runs && !ran {
                decision.admitted.push(Admission { task, reason });
                self.tasks.insert(task, TaskState::Running);
            }
        }
        let count = 1 + self.random.below(self.stages.min(running.len()));
        decision.groups = vec![Vec::new(); count];
        for (index, task) in running.into_iter().enumerate() {
            let group = if index < count {
                index
            } else {
                self.random.below(count)
            };
            decision.groups[group].push(Member { task, parts: 1 });
        }
        decision.max_steps = Some(1 + usize::from(self.random.below(8) == 0));
        decision
    }

    fn finish(&mut self, task: TaskId, outcome: TaskOutcome) -> Result<(), SchedulerError> {
        self.tasks.insert(task, outcome.into());
        Ok(())
    }

    fn state(&self, task: TaskId) -> Option<TaskState> {
        self.tasks.get(&task).copied()
    }
}

fn parked(run: &TrainedRun, name: &str) -> usize {
    let parked = run
        .events
        .iter()
        .filter(|event| matches!(event, Event::Park { adapter, .. } if adapter == name));
    parked.count()
}

fn whims_change_nothing(stages: usize) {
    let adapters: Vec<Value> = (0..NAMES.len()).map(adapter).collect();
    let mut whims = Whims::new(stages);
    let run = train_with(Some(&mut whims), |output_dir| {
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
    whims_change_nothing(1);
}

/// And on two, with random groups.
#[test]
fn parked_a_hundred_times_on_two_stages() {
    whims_change_nothing(2);
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
        config["pipeline"]["balance"] = json!(if stages > 1 { "staggered" } else { "auto" });
        config
    };
    let mut whims = Whims::new(3);
    let run = train_with(Some(&mut whims), |output_dir| {
        config(&adapters, 3, output_dir)
    });
    assert!(run.partitions().is_some_and(|all| all.len() == 3));
    assert_undisturbed(&run, &adapters, config);
}

/// A scheduler that says one wrong thing after a right one.
struct Wrong(Vec<Decision>);

impl Scheduler for Wrong {
    fn submit(&mut self, _: Task) -> Result<(), SchedulerError> {
        Ok(())
    }

    fn decide(&mut self) -> Decision {
        self.0.remove(0)
    }

    fn finish(&mut self, _: TaskId, _: TaskOutcome) -> Result<(), SchedulerError> {
        Ok(())
    }

    fn state(&self, _: TaskId) -> Option<TaskState> {
        None
    }
}

fn admission(task: u64) -> Admission {
    let (task, reason) = (TaskId(task), String::new());
    Admission { task, reason }
}

fn group(tasks: &[u64]) -> Vec<Member> {
    let member = |&task: &u64| Member {
        task: TaskId(task),
        parts: 1,
    };
    tasks.iter().map(member).collect()
}

#[test]
fn a_decision_that_contradicts_what_runs_is_refused() {
    let first = Decision {
        admitted: vec![admission(0)],
        groups: vec![group(&[0])],
        max_steps: Some(1),
        ..Decision::default()
    };
    let running = |groups| Decision {
        groups,
        ..Decision::default()
    };
    let parking = |task| Parking {
        task: TaskId(task),
        by: None,
        reason: String::new(),
    };
    let parts = vec![Member {
        task: TaskId(0),
        parts: 0,
    }];
    for (second, problem) in [
        (running(vec![]), "task 0 runs and is in no group"),
        (running(vec![group(&[0, 0])]), "task 0 is in a group twice"),
        (
            running(vec![group(&[0, 1])]),
            "task 1 is in a group twice, or does not run",
        ),
        (running(vec![parts]), "task 0 is to train in 0 parts"),
        (
            Decision {
                parked: vec![parking(1)],
                groups: vec![group(&[0])],
                ..Decision::default()
            },
            "task 1 is to be parked and does not run",
        ),
        (
            Decision {
                admitted: vec![admission(0)],
                groups: vec![group(&[0])],
                ..Decision::default()
            },
            "task 0 is to begin and does not wait",
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
                &mut Wrong(vec![first.clone(), second]),
                &AtomicBool::new(false),
                &mut |_| {},
            )
            .expect_err("a wrong decision");
        assert!(matches!(error, TrainerError::Decision { .. }), "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

/// Parks the second task, goes on with the first for a step, and then decides what cannot be carried out.
struct Breaks {
    decisions: usize,
}

impl Scheduler for Breaks {
    fn submit(&mut self, _: Task) -> Result<(), SchedulerError> {
        Ok(())
    }

    fn decide(&mut self) -> Decision {
        self.decisions += 1;
        let [first, second, nobody] = [0, 1, 99].map(TaskId);
        let admitted = |task| Admission {
            task,
            reason: String::new(),
        };
        let group = |tasks: &[TaskId]| {
            let member = |&task| Member { task, parts: 1 };
            vec![tasks.iter().map(member).collect()]
        };
        match self.decisions {
            1 => Decision {
                admitted: [first, second].map(admitted).into(),
                groups: group(&[first, second]),
                ..Decision::default()
            },
            2 => Decision {
                parked: vec![Parking {
                    task: second,
                    by: Some(first),
                    reason: String::new(),
                }],
                groups: group(&[first]),
                ..Decision::default()
            },
            3 => Decision {
                groups: group(&[first]),
                max_steps: Some(1),
                ..Decision::default()
            },
            _ => Decision {
                groups: group(&[nobody]),
                ..Decision::default()
            },
        }
    }

    fn finish(&mut self, _: TaskId, _: TaskOutcome) -> Result<(), SchedulerError> {
        Ok(())
    }

    fn state(&self, _: TaskId) -> Option<TaskState> {
        None
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
    let mut scheduler = Breaks { decisions: 0 };
    let ended = run.train_with(&mut scheduler, &AtomicBool::new(false), &mut |_| {});
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
