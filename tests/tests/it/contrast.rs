//! Contrastive Instruction Tuning, against what torch and PEFT make of the same rows.

use std::{
    fs,
    path::{Path, PathBuf},
};

use loraloom_model::PeftAdapter;
use loraloom_tests::{
    Fixture, TrainedRun, assert_close, largest_relative_difference, losses, train,
};
use serde_json::{Value, json};

const TEMPLATE: &str = "{{ question if is_origin else paraphrase }} {{ answer }}";

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/llama-gqa/contrast")
}

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("a file");
    serde_json::from_str(&text).expect("JSON")
}

/// The jobs as adapters.
fn jobs() -> Vec<Value> {
    let jobs = read(&directory().join("jobs.json"));
    let job = |job: &Value| {
        json!({
            "name": job["name"], "dataset": "paraphrases", "objective": job["objective"],
            "init_from": directory().with_file_name("preferences").join("init"),
            "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj", "down_proj"]},
            "train": {
                "batch_size": job["batch_size"], "max_seq_len": 64, "max_steps": 20, "learning_rate": 2e-3,
                "gradient_accumulation_steps": job["gradient_accumulation_steps"], "shuffle": false,
                "lr_scheduler_type": "constant", "weight_decay": 0.0, "max_grad_norm": 1.0,
            },
        })
    };
    jobs.as_array().expect("a list").iter().map(job).collect()
}

fn config(adapters: &[Value], output_dir: &Path) -> Value {
    let mut config = Fixture::open("llama-gqa").config(&[], output_dir);
    config["adapters"] = json!(adapters);
    let rows = directory().join("rows.jsonl");
    config["datasets"] = json!({
        "paraphrases": {"path": rows, "template": TEMPLATE},
        "data": config["datasets"]["data"],
    });
    config
}

/// Both in one batch: losses within 1e-6, A and B within 1e-4 after 20 steps.
#[test]
fn losses_and_weights_are_those_of_torch() {
    let jobs = jobs();
    let run = train(|output_dir| config(&jobs, output_dir));
    for job in &jobs {
        let name = job["name"].as_str().expect("a name");
        let of_job = directory().join("jobs").join(name);
        let steps = read(&of_job.join("steps.json"));
        let all = |key: &str| -> Vec<f64> {
            let steps = steps.as_array().expect("a list").iter();
            steps
                .map(|step| step[key].as_f64().expect("a number"))
                .collect()
        };
        let (found, norms): (Vec<f64>, Vec<f64>) = losses(&run.events, name)
            .into_iter()
            .map(|[loss, norm]| (loss, norm))
            .unzip();
        assert_close(&format!("{name} loss"), &found, &all("loss"), 1e-6);
        assert_close(
            &format!("{name} gradient norm"),
            &norms,
            &all("grad_norm"),
            1e-4,
        );
        let expected = PeftAdapter::load(&of_job.join("final")).expect("PEFT's adapter");
        let weights = largest_relative_difference(&run.adapter(name), &expected);
        assert!(weights <= 1e-4, "{name}: weights differ by {weights:.2e}");
    }
}

/// One after another, together in one batch with SFT, and over two stages.
#[test]
fn an_adapter_has_the_bits_that_it_has_alone() {
    let mut jobs = jobs();
    jobs.push(json!({
        "name": "sft", "dataset": "data", "lora": {"r": 8, "target_modules": ["q_proj", "lm_head"]},
        "train": {"batch_size": 3, "max_seq_len": 64, "max_steps": 20},
    }));
    let over = |jobs: &[Value], stages: &[&str]| {
        train(|output_dir| {
            let mut config = config(jobs, output_dir);
            config["pipeline"] = json!({"stages": stages, "microbatches": 2});
            config["datasets"]
                .as_object_mut()
                .expect("a mapping")
                .retain(|name, _| jobs.iter().any(|job| *name == job["dataset"]));
            config
        })
    };
    let together = over(&jobs, &["cpu"]);
    let over_two = over(&jobs, &["cpu", "cpu"]);
    for job in &jobs {
        let alone = over(std::slice::from_ref(job), &["cpu"]);
        let name = job["name"].as_str().expect("a name");
        for (run, what) in [(&together, "together"), (&over_two, "over two stages")] {
            assert!(run.adapter(name) == alone.adapter(name), "{name} {what}");
            let of = |run: &TrainedRun| losses(&run.events, name);
            assert_eq!(of(run), of(&alone), "{name} {what}");
        }
    }
}
