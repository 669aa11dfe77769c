//! What is saved is what PEFT saves: the same keys, shapes and types, and a configuration that says
//! the same. `fixtures/check_peft_loads.py` has PEFT itself load it, where Python can be had.

use std::{collections::BTreeMap, fs, path::Path};

use loraloom_tests::{Fixture, train};
use safetensors::SafeTensors;
use serde_json::{Value, json};

fn tensors(directory: &Path) -> BTreeMap<String, (String, Vec<usize>)> {
    let bytes = fs::read(directory.join("adapter_model.safetensors")).expect("a saved adapter");
    let file = SafeTensors::deserialize(&bytes).expect("a valid file");
    file.iter()
        .map(|(name, view)| {
            (
                name.to_owned(),
                (format!("{:?}", view.dtype()), view.shape().to_vec()),
            )
        })
        .collect()
}

fn configuration(directory: &Path) -> Value {
    let text = fs::read_to_string(directory.join("adapter_config.json")).expect("its config");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    if let Some(targets) = config["target_modules"].as_array_mut() {
        targets.sort_by_key(Value::to_string);
    }
    config
}

#[test]
fn keys_shapes_and_configuration_are_those_that_peft_writes() {
    for fixture in Fixture::with_jobs() {
        for job in fixture.jobs() {
            let mut adapter = job.adapter();
            adapter["train"]["max_steps"] = json!(2);
            // A fresh adapter: its shape comes from the configuration, not from PEFT's directory.
            adapter
                .as_object_mut()
                .expect("a mapping")
                .remove("init_from");
            let run = train(|output_dir| fixture.config(&[adapter], output_dir));
            let saved = run
                .directory
                .path()
                .join("run/adapters")
                .join(&job.name)
                .join("last");
            let peft = job.directory.join("final");
            assert_eq!(tensors(&saved), tensors(&peft), "{}", job.name);
            let (ours, theirs) = (configuration(&saved), configuration(&peft));
            for key in [
                "peft_type",
                "task_type",
                "r",
                "lora_alpha",
                "lora_dropout",
                "target_modules",
                "bias",
                "use_rslora",
                "use_dora",
                "fan_in_fan_out",
                "inference_mode",
                "init_lora_weights",
                "modules_to_save",
                "rank_pattern",
                "alpha_pattern",
            ] {
                let number = |value: &Value| value.as_f64().map(|v| json!(v));
                let value = |config: &Value| number(&config[key]).unwrap_or(config[key].clone());
                assert_eq!(value(&ours), value(&theirs), "{} {key}", job.name);
            }
        }
    }
}
