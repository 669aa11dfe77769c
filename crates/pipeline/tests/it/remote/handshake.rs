//! What a worker and a controller must agree in before they work together.

use std::{fs, time::Duration};

use batchlora::{Segment, Segments};
use loraloom_config::WorkerAddress;
use loraloom_pipeline::{
    Pipeline, PipelineError, StageLayers,
    remote::{Controller, Worker, WorkerError},
};

use crate::remote::{
    alone::done_alone,
    support::{Model, TOKEN, controller, microbatch, model, options, remote, scratch},
};

/// What a worker says to the bundled model's controller.
fn refusal(controller: &Controller, worker: &Worker) -> WorkerError {
    let model = Model::open(&model());
    match model.connect(controller, worker, 1, 1..3) {
        Err(PipelineError::Worker {
            stage: 1,
            address,
            problem,
        }) => {
            assert_eq!(address, worker.address().to_string());
            problem
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_token_is_asked_for() {
    if done_alone() {
        return;
    }
    let worker = Worker::start(options("token", &model())).unwrap();
    let controller = Controller::new("another token", Duration::from_mins(1)).unwrap();
    assert_eq!(refusal(&controller, &worker), WorkerError::Token);
    let empty = Controller::new("", Duration::from_mins(1)).unwrap();
    assert_eq!(refusal(&empty, &worker), WorkerError::Token);
    // White space around it, as a file has it, is no part of a token.
    let spaced = Controller::new(&format!(" {TOKEN}\n"), Duration::from_mins(1)).unwrap();
    let model = Model::open(&model());
    assert!(model.connect(&spaced, &worker, 0, 0..4).is_ok());
}

#[test]
fn versions_must_be_the_same() {
    if done_alone() {
        return;
    }
    let mut options = options("version", &model());
    options.version = "0.0.7".to_owned();
    let worker = Worker::start(options).unwrap();
    let problem = refusal(&controller(), &worker);
    let own = env!("CARGO_PKG_VERSION").to_owned();
    let what = "loraloom version".to_owned();
    let expected = WorkerError::Mismatch {
        what,
        worker: "0.0.7".to_owned(),
        controller: own,
    };
    assert_eq!(problem, expected);
}

/// A copy of the bundled model with something else in one of its files.
fn altered(name: &str, file: &str, alter: impl FnOnce(&mut Vec<u8>)) -> std::path::PathBuf {
    let directory = scratch(name);
    for entry in fs::read_dir(model()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
        }
    }
    let mut bytes = fs::read(directory.join(file)).unwrap();
    alter(&mut bytes);
    fs::write(directory.join(file), bytes).unwrap();
    directory
}

#[test]
fn configurations_must_be_the_same() {
    if done_alone() {
        return;
    }
    let directory = altered("config-model", "config.json", |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        *bytes = text.replace("1e-06", "1e-05").into_bytes();
    });
    let worker = Worker::start(options("config", &directory)).unwrap();
    let WorkerError::Mismatch {
        what,
        worker,
        controller,
    } = refusal(&controller(), &worker)
    else {
        panic!("another problem");
    };
    assert_eq!(what, "model configuration");
    assert_eq!(
        (worker.as_str(), controller.as_str()),
        ("rms_norm_eps: 1e-5", "rms_norm_eps: 1e-6")
    );
}

/// One bit in one of the layers that the stage holds; another layer does not matter.
#[test]
fn weights_must_be_the_same() {
    if done_alone() {
        return;
    }
    let directory = altered("weights-model", "model.safetensors", |bytes| {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let offsets = &header["model.layers.2.mlp.up_proj.weight"]["data_offsets"];
        let begin = offsets[0].as_u64().unwrap() as usize;
        bytes[8 + length + begin + 100] ^= 1;
    });
    let worker = Worker::start(options("weights", &directory)).unwrap();
    let problem = refusal(&controller(), &worker);
    assert!(
        matches!(&problem, WorkerError::Mismatch { what, .. } if what == "weights of layers 1..3"),
        "{problem}"
    );
    let model = Model::open(&model());
    let controller = controller();
    assert!(model.connect(&controller, &worker, 0, 0..2).is_ok());
}

/// A worker is one controller's, until that one is gone.
#[test]
fn a_second_controller_is_refused() {
    if done_alone() {
        return;
    }
    let worker = Worker::start(options("second", &model())).unwrap();
    let model = Model::open(&model());
    let first = controller();
    let stage = model.connect(&first, &worker, 0, 0..4).unwrap();
    let second = controller();
    assert!(matches!(
        refusal(&second, &worker),
        WorkerError::Busy { .. }
    ));
    drop((stage, first));
    assert!(model.connect(&second, &worker, 0, 0..4).is_ok());
}

#[test]
fn nobody_there_is_said() {
    if done_alone() {
        return;
    }
    let worker = Worker::start(options("gone", &model())).unwrap();
    let address: WorkerAddress = worker.address().clone();
    drop(worker);
    let model = Model::open(&model());
    let error = controller().reach(0, &address, &model.config).unwrap_err();
    assert!(
        matches!(
            &error,
            PipelineError::Worker {
                problem: WorkerError::Unreachable { .. },
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn layers_that_do_not_exist_are_refused() {
    if done_alone() {
        return;
    }
    let worker = Worker::start(options("layers", &model())).unwrap();
    let model = Model::open(&model());
    for layers in [3..9, 2..2] {
        let error = model
            .connect(&controller(), &worker, 0, layers)
            .unwrap_err();
        assert!(error.to_string().contains("has no layers"), "{error}");
    }
    let staggered = StageLayers::new(vec![0..2, 3..9]).unwrap();
    let error = model
        .connect(&controller(), &worker, 0, staggered)
        .unwrap_err();
    assert!(error.to_string().contains("has no layers"), "{error}");
    for (ranges, refused) in [(vec![0..2, 1..3], false), (vec![0..2, 0..5], true)] {
        let staggered = StageLayers::new(ranges).unwrap();
        let connected = model.connect(&controller(), &worker, 0, staggered);
        assert_eq!(connected.is_err(), refused);
    }
}

/// What a worker cannot compute is an error with its own words, and no more than that: it serves the
/// next controller.
#[test]
fn a_pass_that_cannot_be_done_is_an_error() {
    if done_alone() {
        return;
    }
    let model = Model::open(&model());
    let (pipeline, workers) = remote(&model, &[0..2, 2..4]);
    let mut batch = microbatch(&model.config, 3, None);
    let rows = batch.segments.rows();
    let segments = vec![Segment {
        rows: 0..rows,
        slot: 5,
    }];
    batch.segments = Segments::new(rows, segments).unwrap();
    let error = pipeline.target_scores(0, &batch).unwrap_err();
    let PipelineError::Worker {
        stage: 0, problem, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert!(problem.to_string().contains("slot"), "{problem}");
    drop(pipeline);
    let controller = controller();
    let again = model.connect(&controller, &workers[0], 0, 0..4).unwrap();
    let mut pipeline = Pipeline::new(vec![again]).unwrap();
    let batch = microbatch(&model.config, 3, None);
    for seed in 0..2 {
        pipeline
            .push(0, crate::remote::support::adapter(&model.config, seed))
            .unwrap();
    }
    assert!(pipeline.target_scores(0, &batch).is_ok());
}

/// A worker that is stuck while its machine and the network are well.
#[test]
fn a_worker_that_does_not_get_on_is_lost() {
    if done_alone() {
        return;
    }
    let (released, stuck) = std::sync::mpsc::channel::<()>();
    let stuck = std::sync::Mutex::new(stuck);
    let mut options = options("stuck", &model());
    // A pass that cannot be done says so here, and does not come back.
    options.log = Box::new(move |line| {
        if line.starts_with("failed") {
            let _ = stuck.lock().unwrap().recv();
        }
    });
    let worker = Worker::start(options).unwrap();
    let model = Model::open(&model());
    let controller = Controller::new(TOKEN, Duration::from_secs(2)).unwrap();
    // What is not answered may have been asked before the pass.
    let begun = std::time::Instant::now();
    let stage = model.connect(&controller, &worker, 0, 0..4).unwrap();
    let pipeline = Pipeline::new(vec![stage]).unwrap();
    // No adapter is there.
    let batch = microbatch(&model.config, 3, None);
    let error = pipeline.target_scores(0, &batch).unwrap_err();
    let seconds = begun.elapsed().as_secs_f64();
    assert!(
        matches!(&error, PipelineError::StageLost { stage: 0, reason, .. } if reason.contains("2 s")),
        "{error}"
    );
    assert!((2.0..5.0).contains(&seconds), "{seconds}");
    drop(released);
}
