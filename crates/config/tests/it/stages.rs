//! The device, the stages of the pipeline, and what layers they hold.

use crate::support::{fixture, load};
use loraloom_config::{BalanceChoice, DeviceChoice, RunConfig};

/// The device and the stages of a configuration with these lines more.
fn stages(lines: &str) -> (DeviceChoice, Vec<String>) {
    let text =
        format!("model: m\ndatasets: {{d: {{path: p}}}}\nadapters: [{{name: a}}]\n{lines}\n");
    let config = match load(&text, &[]) {
        Ok(loaded) => loaded.config,
        Err(error) => panic!("{error}\n{text}"),
    };
    let back = load(&config.to_yaml().unwrap(), &[]).unwrap().config;
    assert_eq!(back, config, "{text}");
    let stages = config.pipeline.stages.iter().map(ToString::to_string);
    (config.device, stages.collect())
}

#[test]
fn the_device_is_the_first_stage_of_this_machine() {
    let same = |text: &str| vec![text.to_owned()];
    let (cpu, first) = (DeviceChoice::Cpu, DeviceChoice::Wgpu(Some(0)));
    assert_eq!(
        stages("scheduler: {policy: strict_fifo}\nsweep: null\npipeline: null"),
        (DeviceChoice::Auto, same("auto"))
    );
    assert_eq!(stages("device: wgpu:0"), (first, same("wgpu:0")));
    assert_eq!(
        stages("pipeline: {stages: ['wgpu:0'], balance: auto, schedule: lorapp, microbatches: 1}"),
        (first, same("wgpu:0"))
    );
    // As a resolved configuration has it where one changes the device only.
    assert_eq!(
        stages("device: wgpu:0\npipeline: {stages: [auto]}"),
        (first, same("wgpu:0"))
    );
    assert_eq!(
        stages("device: auto\npipeline: {stages: [cpu, cpu], balance: [3, 1]}"),
        (cpu, vec!["cpu".to_owned(); 2])
    );
    let remote = format!("remote:{}@host:1", "0a".repeat(32));
    assert_eq!(
        stages(&format!(
            "pipeline: {{stages: ['{remote}', 'wgpu:0', cpu], token_file: t}}"
        )),
        (
            first,
            vec![remote.clone(), "wgpu:0".to_owned(), "cpu".to_owned()]
        )
    );
    for device in ["", "device: auto\n", "device: cpu\n"] {
        let lines = format!("{device}pipeline: {{stages: ['{remote}'], token_file: t}}");
        assert_eq!(stages(&lines), (cpu, same(&remote)));
    }
}

#[test]
fn a_worker_is_the_same_in_either_form_of_its_key() {
    let base32 = format!("remote:{}@host:1", "a".repeat(52));
    let (_, found) = stages(&format!(
        "pipeline: {{stages: ['{base32}'], token_file: t}}"
    ));
    assert_eq!(found, [format!("remote:{}@host:1", "0".repeat(64))]);
}

#[test]
fn a_worker_has_no_inputs_to_begin_from() {
    let remote = format!("remote:{}@host:1", "0".repeat(64));
    let text = format!(
        "model: m\ndatasets: {{d: {{path: p}}}}\npipeline: {{stages: [cpu, '{remote}'], token_file: t}}\n\
         adapters: [{{name: a, lora: {{init_lora_weights: eva}}}}]"
    );
    let error = load(&text, &[]).unwrap_err().to_string();
    let expected = format!("eva needs all stages on this machine, not on {remote}");
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn an_override_makes_a_pipeline() {
    let overrides = ["pipeline.stages=[cpu, cpu]", "pipeline.balance=[1, 2]"].map(str::to_owned);
    let config = RunConfig::load(&fixture("minimal.yaml"), &overrides)
        .unwrap()
        .config;
    assert_eq!(config.device, DeviceChoice::Cpu);
    assert_eq!(config.pipeline.balance, BalanceChoice::Layers(vec![1, 2]));
    assert_eq!(config.pipeline.stages.len(), 2);
}

#[test]
fn layers_may_be_staggered() {
    let loaded = |pipeline: &str| {
        let text = format!(
            "model: m\ndatasets: {{d: {{path: p}}}}\nadapters: [{{name: a}}]\npipeline: {pipeline}"
        );
        let loaded = load(&text, &[]).unwrap();
        assert_eq!(loaded.config.pipeline.balance, BalanceChoice::Staggered);
        let back = load(&loaded.config.to_yaml().unwrap(), &[]).unwrap().config;
        assert_eq!(back, loaded.config);
        let of_balance = |warning: &&String| warning.contains("`pipeline.balance: staggered`");
        loaded.warnings.iter().filter(of_balance).count()
    };
    assert_eq!(loaded("{stages: [cpu, cpu], balance: staggered}"), 0);
    assert_eq!(loaded("{balance: staggered}"), 1);
    for schedule in ["gpipe", "one_f_one_b"] {
        let pipeline = format!("{{stages: [cpu, cpu], balance: staggered, schedule: {schedule}}}");
        assert_eq!(loaded(&pipeline), 1, "{schedule}");
    }
}

#[test]
fn partitions_may_be_given() {
    let loaded = |pipeline: &str| {
        let text = format!(
            "model: m\ndatasets: {{d: {{path: p}}}}\nadapters: [{{name: a}}]\npipeline: {pipeline}"
        );
        let loaded = load(&text, &[]).unwrap();
        let partitions = BalanceChoice::Partitions(vec![vec![1, 2], vec![2, 1]]);
        assert_eq!(loaded.config.pipeline.balance, partitions);
        let back = load(&loaded.config.to_yaml().unwrap(), &[]).unwrap().config;
        assert_eq!(back, loaded.config);
        loaded.warnings
    };
    let balance = "stages: [cpu, cpu], balance: [[1, 2], [2, 1]]";
    assert_eq!(loaded(&format!("{{{balance}}}")), [""; 0]);
    assert_eq!(
        loaded(&format!("{{{balance}, schedule: gpipe}}")),
        ["`pipeline.balance: [[…], …]` has no effect: this schedule does not interleave groups"]
    );
}
