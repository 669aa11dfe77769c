//! Nothing that is configured is silently left out, nothing else moves.

use std::{collections::BTreeSet, fs};

use loraloom_model::{PeftAdapter, Projection};
use loraloom_tests::{Fixture, train};
use serde_json::json;

/// After two steps every targeted A and B of every layer has moved, and no other module has any.
#[test]
fn two_steps_move_every_target_and_nothing_else() {
    for fixture in Fixture::with_jobs() {
        let weights = |file: &str| fs::read(fixture.directory.join(file)).ok();
        let base = weights("model.safetensors");
        for job in fixture.jobs() {
            let mut adapter = job.adapter();
            adapter["train"]["max_steps"] = json!(2);
            adapter["train"]["warmup_steps"] = json!(0);
            adapter["train"]["lr_scheduler_type"] = json!("constant");
            let run = train(|output_dir| fixture.config(&[adapter], output_dir));
            let before = PeftAdapter::load(&job.directory.join("init")).expect("PEFT's adapter");
            let after = run.adapter(&job.name);
            let expected = targets(&before, &job.fields["lora"]["target_modules"]);
            assert_eq!(after.modules.keys().cloned().collect::<Vec<_>>(), expected);
            for (module, after) in &after.modules {
                let before = &before.modules[module];
                assert_ne!(before.a, after.a, "{} {module} A", job.name);
                assert_ne!(before.b, after.b, "{} {module} B", job.name);
            }
        }
        assert_eq!(
            weights("model.safetensors"),
            base,
            "the base is never written"
        );
    }
}

/// All targeted modules, from the names in the configuration and the layers PEFT knows.
fn targets(adapter: &PeftAdapter, names: &serde_json::Value) -> Vec<String> {
    let names: Vec<&str> = names
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|name| name.as_str())
        .collect();
    let layers: BTreeSet<usize> = adapter
        .modules
        .keys()
        .filter_map(|module| module.split('.').nth(2)?.parse().ok())
        .collect();
    let mut modules: Vec<String> = layers
        .into_iter()
        .flat_map(|layer| Projection::ALL.map(|projection| (layer, projection)))
        .filter(|(_, projection)| names.contains(&projection.name()))
        .map(|(layer, projection)| projection.module(layer))
        .collect();
    modules.sort();
    modules
}
