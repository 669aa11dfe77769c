//! Start values that are computed are PEFT's, and functions of the adapter alone.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
};

use loraloom_config::RunConfig;
use loraloom_model::{LoraWeights, PeftAdapter};
use loraloom_tests::{
    Fixture, TrainedRun, assert_close, assert_same_training, device, largest_relative_difference,
    losses, train,
};
use loraloom_trainer::{Event, Outcome, Run, SavedRun};
use serde_json::{Value, json};

/// Jobs of `starts/jobs.json` whose name begins with one of these.
fn jobs_of(kinds: &[&str]) -> (Fixture, Vec<Value>) {
    let fixture = Fixture::open("llama-gqa");
    let text = fs::read_to_string(fixture.directory.join("starts/jobs.json")).expect("jobs");
    let mut jobs: Vec<Value> = serde_json::from_str(&text).expect("jobs");
    jobs.retain(|job| kinds.iter().any(|kind| name(job).starts_with(kind)));
    (fixture, jobs)
}

/// PEFT's loss of every step.
fn recorded(fixture: &Fixture, name: &str) -> Vec<f64> {
    let file = fixture
        .directory
        .join("starts/jobs")
        .join(name)
        .join("losses.json");
    let recorded = fs::read_to_string(file).expect("losses");
    let recorded: Value = serde_json::from_str(&recorded).expect("losses");
    serde_json::from_value(recorded["losses"].clone()).expect("numbers")
}

fn name(job: &Value) -> &str {
    job["name"].as_str().expect("a name")
}

fn run(fixture: &Fixture, adapters: &[Value]) -> TrainedRun {
    train(|output_dir| fixture.config(adapters, output_dir))
}

fn of_peft(fixture: &Fixture, job: &Value, state: &str) -> PeftAdapter {
    let directory = fixture.directory.join("starts/jobs").join(name(job));
    PeftAdapter::load(&directory.join(state)).expect("PEFT's adapter")
}

/// The job with changed settings of its training.
fn with(job: &Value, settings: Value) -> Value {
    let mut job = job.clone();
    for (key, value) in settings.as_object().expect("settings") {
        job["train"][key] = value.clone();
    }
    job
}

/// A step at a learning rate of zero saves the adapter as it began.
fn unmoved(job: &Value) -> Value {
    with(job, json!({"max_steps": 1, "learning_rate": 0}))
}

fn starts(run: &TrainedRun) -> Vec<&Event> {
    let starts = run.events.iter();
    starts
        .filter(|event| matches!(event, Event::StartValues { .. }))
        .collect()
}

#[test]
fn adapters_begin_and_train_as_with_peft() {
    let (fixture, jobs) = jobs_of(&["eva"]);
    let begun = run(&fixture, &jobs.iter().map(unmoved).collect::<Vec<_>>());
    let trained = run(&fixture, &jobs);
    for job in &jobs {
        let name = name(job);
        // PEFT draws B of an embedding from another generator.
        let without_embedding = |mut adapter: PeftAdapter| {
            adapter.modules.remove("model.embed_tokens");
            adapter
        };
        let (found, expected) = (begun.adapter(name), of_peft(&fixture, job, "init"));
        let embeds = expected.modules.contains_key("model.embed_tokens");
        let (found, expected) = (without_embedding(found), without_embedding(expected));
        for (module, expected) in &expected.modules {
            let found = &found.modules[module];
            assert_eq!(found.r, expected.r, "{name} {module}");
            assert!(
                (found.lora_alpha - expected.lora_alpha).abs() < 1e-9,
                "{name} {module}"
            );
        }
        let difference = largest_relative_difference(&found, &expected);
        let steps: Vec<f64> = losses(&trained.events, name)
            .iter()
            .map(|[loss, _]| *loss)
            .collect();
        let mut recorded = recorded(&fixture, name);
        if embeds {
            recorded.truncate(1);
        }
        let worst = steps.iter().zip(&recorded).map(|(a, b)| (a - b).abs() / b);
        println!(
            "{name}: start {difference:.1e}, loss {:.1e}",
            worst.fold(0.0, f64::max)
        );
        assert!(
            difference < 1e-5,
            "{name}: start values differ by {difference:.2e}"
        );
        assert_close(
            &format!("{name} loss"),
            &steps[..recorded.len()],
            &recorded,
            1e-6,
        );
    }
}

/// Neither the adapters beside it nor the stages change how an adapter begins, nor does it begin again.
#[test]
fn an_adapter_begins_once_and_by_itself() {
    let (fixture, jobs) = jobs_of(&["eva"]);
    let job = with(&jobs[1], json!({"max_steps": 4}));
    let alone = run(&fixture, std::slice::from_ref(&job));
    assert_eq!(starts(&alone).len(), 1);
    let Event::StartValues {
        batches,
        decompositions,
        ..
    } = starts(&alone)[0]
    else {
        panic!("it began");
    };
    // Queries, keys and values have one input, and gate and up-projection.
    assert_eq!((*decompositions, *batches > 1), (4 * 2 + 1, true));
    let others: Vec<Value> = jobs
        .iter()
        .map(unmoved)
        .filter(|one| name(one) != name(&job))
        .collect();
    let together = run(
        &fixture,
        &[&others[..1], std::slice::from_ref(&job), &others[1..]].concat(),
    );
    assert_same_training(name(&job), &together, &alone);
    let two_stages = train(|output_dir| {
        let mut config = fixture.config(std::slice::from_ref(&job), output_dir);
        config["pipeline"] = json!({"stages": ["cpu", "cpu"]});
        config
    });
    assert_same_training(name(&job), &two_stages, &alone);

    let (resumed, begins) = interrupted(&fixture, &job);
    assert_eq!(begins, [1, 0]);
    assert!(resumed.adapter(name(&job)) == alone.adapter(name(&job)));
}

/// A run of one job that was stopped after its first step and resumed, and how often each part computed start values.
fn interrupted(fixture: &Fixture, job: &Value) -> (TrainedRun, [usize; 2]) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let file = path.join("config.json");
    let config = fixture.config(std::slice::from_ref(job), &path.join("run"));
    fs::write(&file, config.to_string()).expect("written");
    let config = || RunConfig::load(&file, &[]).expect("a configuration").config;
    let stop = AtomicBool::new(false);
    let (mut begins, mut events) = ([0, 0], Vec::new());
    let begun = Run::prepare(config(), &[device()]).expect("prepared");
    let report = begun.train(&stop, &mut |event: &Event| {
        if matches!(event, Event::Step { step: 1, .. }) {
            stop.store(true, Ordering::Relaxed);
        }
        begins[0] += usize::from(matches!(event, Event::StartValues { .. }));
    });
    assert!(report.expect("it stops").interrupted);
    let saved = SavedRun::claim(&path.join("run")).expect("a checkpoint");
    let resumed = Run::resume(config(), &[device()], saved).expect("it goes on");
    let report = resumed.train(&AtomicBool::new(false), &mut |event: &Event| {
        begins[1] += usize::from(matches!(event, Event::StartValues { .. }));
        events.push(event.clone());
    });
    let report = report.expect("it ends");
    let resumed = TrainedRun {
        directory,
        report,
        events,
    };
    (resumed, begins)
}

/// DoRA takes its magnitudes from the weights, whatever A is: B is zero.
#[test]
fn a_computed_a_has_magnitudes() {
    let (fixture, jobs) = jobs_of(&["eva-r4"]);
    let plain = unmoved(&jobs[0]);
    let mut dora = plain.clone();
    dora["name"] = json!("dora");
    dora["lora"]["use_dora"] = json!(true);
    let run = run(&fixture, &[plain, dora]);
    let [plain, dora] = [name(&jobs[0]), "dora"].map(|name| run.adapter(name).modules);
    for (module, plain) in plain {
        let dora = &dora[&module];
        assert!(
            dora.magnitude.is_some() && (dora.r, &dora.a) == (plain.r, &plain.a),
            "{module}"
        );
    }
}

/// KTO's completions of other prompts are no rows of its adapter.
#[test]
fn a_preference_begins_with_its_own_rows() {
    let (fixture, jobs) = jobs_of(&["eva-r4"]);
    let losses = ["kto", "apo_zero_unpaired"];
    let adapters = losses.map(|loss| {
        let mut job = unmoved(&jobs[0]);
        job["name"] = json!(loss);
        job["dataset"] = json!("rated");
        job["objective"] = json!({"type": "kto", "loss_type": loss});
        job
    });
    let run = train(|output_dir| {
        let mut config = fixture.config(&adapters, output_dir);
        let rows = fixture.directory.join("preferences/rated.jsonl");
        config["datasets"]["rated"] = json!({"path": rows});
        config
    });
    assert_eq!(starts(&run).len(), 2);
    let [with, without] = losses.map(|name| run.adapter(name).modules);
    for (module, without) in without {
        assert!(with[&module].a == without.a, "{module}");
    }
}

/// An adapter whose batches are too short ends; the others train.
#[test]
fn an_adapter_without_enough_tokens_ends_alone() {
    let (fixture, jobs) = jobs_of(&["eva"]);
    let (mut short, other) = (with(&jobs[0], json!({"batch_size": 1})), unmoved(&jobs[1]));
    short["lora"]["r"] = json!(20);
    let run = run(&fixture, &[short, other]);
    let outcomes: Vec<&Outcome> = run.report.adapters.iter().map(|one| &one.outcome).collect();
    let Outcome::Failed { reason, .. } = outcomes[0] else {
        panic!("{outcomes:?}");
    };
    let expected =
        "no batch of 1 rows has 40 tokens to predict, one for each component; lower `lora.r`";
    assert!(reason.contains(expected), "{reason}");
    assert_eq!(outcomes[1], &Outcome::Done);
}

#[test]
fn ranks_wider_than_an_input_are_refused() {
    let (fixture, jobs) = jobs_of(&["eva"]);
    let mut job = jobs[0].clone();
    job["lora"]["r"] = json!(25);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("config.json");
    fs::write(
        &file,
        fixture
            .config(&[job], &directory.path().join("run"))
            .to_string(),
    )
    .expect("written");
    let config = RunConfig::load(&file, &[]).expect("a configuration").config;
    let error = Run::prepare(config, &[device()]).expect_err("too wide");
    let expected = "it takes 50 components, and the narrowest module has 48";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert!(error.hint().is_some());
}

/// Over a base that others share, ranks that are not trained stand for what PEFT subtracts from it.
#[test]
fn adapters_from_the_weights_train_as_with_peft() {
    let (fixture, jobs) = jobs_of(&["pissa", "olora"]);
    let begun = run(&fixture, &jobs.iter().map(unmoved).collect::<Vec<_>>());
    let trained = run(&fixture, &jobs);
    for job in &jobs {
        let name = name(job);
        let [start, last] = ["init", "final"].map(|state| of_peft(&fixture, job, state));
        let (unmoved, found) = (begun.adapter(name), trained.adapter(name));
        let r = start.config.r;
        assert_eq!(
            (found.config.r, found.config.init_lora_weights.clone()),
            (2 * r, None)
        );
        let (mut largest, mut first) = (0f64, 0f64);
        for (module, start) in &start.modules {
            let (found, unmoved) = (&found.modules[module], &unmoved.modules[module]);
            assert!(
                (found.scale - start.scale).abs() < 1e-9 * start.scale,
                "{name} {module}"
            );
            let (change, of_peft) = (product(found), product(&last.modules[module]));
            let expected: Vec<f64> = of_peft
                .iter()
                .zip(product(start))
                .map(|(a, b)| a - b)
                .collect();
            largest = largest.max(apart(&change, &expected));
            first = first.max(apart(&product(&trained_half(unmoved, r)), &product(start)));
            // What is not trained is bit for bit as it began, whatever weight decay takes from the others.
            let frozen = |one: &LoraWeights| one.a[r * one.d_in..].to_vec();
            assert!(frozen(found) == frozen(unmoved), "{name} {module}");
        }
        let steps: Vec<f64> = losses(&trained.events, name)
            .iter()
            .map(|[loss, _]| *loss)
            .collect();
        let recorded = recorded(&fixture, name);
        let worst = steps.iter().zip(&recorded).map(|(a, b)| (a - b).abs() / b);
        let worst = worst.fold(0.0, f64::max);
        println!("{name}: start {first:.1e}, change {largest:.1e}, loss {worst:.1e}");
        assert_close(&format!("{name} loss"), &steps, &recorded, 2e-6);
        // PEFT decomposes in float32: its k_proj of layer 1 is 1.7e-5 off what float64 gives.
        assert!(first < 3e-5, "{name}: start values differ by {first:.2e}");
        assert!(largest < 1e-4, "{name}: changes differ by {largest:.2e}");
    }
}

/// `scale · B · A`, `[d_out, d_in]`.
fn product(weights: &LoraWeights) -> Vec<f64> {
    let LoraWeights { r, d_in, d_out, .. } = *weights;
    let mut sums = vec![0.0; d_out * d_in];
    for (row, sums) in sums.chunks_mut(d_in).enumerate() {
        for rank in 0..r {
            let b = weights.scale * f64::from(weights.b[row * r + rank]);
            let a = &weights.a[rank * d_in..][..d_in];
            sums.iter_mut()
                .zip(a)
                .for_each(|(sum, a)| *sum += b * f64::from(*a));
        }
    }
    sums
}

/// The first r ranks.
fn trained_half(weights: &LoraWeights, r: usize) -> LoraWeights {
    let b = weights
        .b
        .chunks(weights.r)
        .flat_map(|row| row[..r].to_vec());
    LoraWeights {
        r,
        a: weights.a[..r * weights.d_in].to_vec(),
        b: b.collect(),
        ..weights.clone()
    }
}

/// The norm of the difference over that of the second.
fn apart(found: &[f64], expected: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

/// Two stages and neighbours change nothing, and what is not trained stays so in a resumed run.
#[test]
fn adapters_from_the_weights_are_what_they_are_alone() {
    let (fixture, jobs) = jobs_of(&["pissa", "olora", "eva-r4"]);
    let jobs: Vec<Value> = jobs
        .iter()
        .map(|job| with(job, json!({"max_steps": 4})))
        .collect();
    let together = train(|output_dir| {
        let mut config = fixture.config(&jobs, output_dir);
        config["pipeline"] = json!({"stages": ["cpu", "cpu"]});
        config
    });
    for job in jobs.iter().filter(|job| !name(job).starts_with("eva")) {
        let alone = run(&fixture, std::slice::from_ref(job));
        assert_same_training(name(job), &together, &alone);
        let (resumed, begins) = interrupted(&fixture, job);
        assert_eq!(begins, [1, 0]);
        assert!(resumed.adapter(name(job)) == alone.adapter(name(job)));
    }
}

#[test]
fn what_cannot_begin_from_the_weights_is_refused() {
    let (fixture, jobs) = jobs_of(&["pissa-r4"]);
    let refused = |key: &str, value: Value, expected: &str| {
        let mut job = jobs[0].clone();
        job["lora"][key] = value;
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("config.json");
        fs::write(
            &file,
            fixture
                .config(&[job], &directory.path().join("run"))
                .to_string(),
        )
        .expect("written");
        let error = match RunConfig::load(&file, &[]) {
            Err(error) => error.to_string(),
            Ok(loaded) => Run::prepare(loaded.config, &[device()])
                .expect_err("refused")
                .to_string(),
        };
        assert!(error.contains(expected), "{error}");
    };
    refused(
        "lora_dropout",
        json!(0.1),
        "pissa needs `lora_dropout: 0`, got 0.1",
    );
    refused(
        "target_modules",
        json!(["embed_tokens"]),
        "pissa cannot begin an adapter of embed_tokens",
    );
    // Keys and values are narrower than the rest.
    refused(
        "r",
        json!(25),
        "it takes 25 components, and the narrowest module has 24",
    );
}

/// Layers of zeros, as models have that were extended by some. PEFT's start values of them are zeros, too; OLoRA has none.
#[test]
fn weights_of_a_low_rank_have_start_values_or_none() {
    let (fixture, jobs) = jobs_of(&["pissa", "olora"]);
    let model = fixture.without_output_projections();
    let jobs = jobs.iter().map(|job| {
        let mut job = unmoved(job);
        job["lora"]["target_modules"] = json!(["q_proj", "o_proj"]);
        job
    });
    let jobs: Vec<Value> = jobs.collect();
    let run = train(|output_dir| {
        let mut config = fixture.config(&jobs, output_dir);
        config["model"] = json!(model.path());
        config
    });
    for report in &run.report.adapters {
        if report.name.starts_with("olora") {
            let Outcome::Failed { reason, .. } = &report.outcome else {
                panic!("{report:?}");
            };
            assert!(reason.contains("depend on each other"), "{reason}");
            continue;
        }
        assert_eq!(report.outcome, Outcome::Done, "{}", report.name);
        for (module, weights) in &run.adapter(&report.name).modules {
            let zeros = weights
                .a
                .iter()
                .chain(&weights.b)
                .all(|value| *value == 0.0);
            assert_eq!(zeros, module.contains("o_proj"), "{module}");
        }
    }
}
