//! Adapters that have one start by `init_lora_weights: slora`.

use std::path::Path;

use loraloom_config::{LoadOptions, RunConfig};

/// Adapters a and b, with these settings of `lora` beside `init_lora_weights`, and c, which is no client.
fn load([a, b]: [&str; 2], more: &str) -> Result<RunConfig, String> {
    let text = format!(
        "model: m\ndatasets: {{d: {{path: p}}}}\n{more}\nadapters:\n  \
         - {{name: b, lora: {{init_lora_weights: slora, {b}}}}}\n  \
         - {{name: a, lora: {{init_lora_weights: slora, {a}}}}}\n  \
         - {{name: c}}\n"
    );
    let loaded = RunConfig::load_yaml(&text, Path::new("x.yaml"), &LoadOptions::default());
    loaded
        .map(|loaded| loaded.config)
        .map_err(|error| error.to_string())
}

#[test]
fn adapters_of_the_same_settings_or_group_are_clients() {
    for [a, b] in [
        ["r: 4", "r: 8"],
        [
            "slora_config: {rounds: 3}",
            "slora_config: {rounds: 3, density: 0.01}",
        ],
        ["slora_config: {group: g}", "slora_config: {group: g}"],
        [
            "target_modules: [q_proj, v_proj]",
            "target_modules: [v_proj, q_proj]",
        ],
    ] {
        let adapters = load([a, b], "").expect("clients").adapters;
        for (adapter, clients) in adapters.iter().zip([&["a", "b"][..], &["a", "b"], &[]]) {
            let found = adapter.clients(&adapters).into_iter();
            assert_eq!(found.map(|one| &one.name).collect::<Vec<_>>(), clients);
        }
    }
}

#[test]
fn what_cannot_have_one_start_is_refused() {
    let remote = format!("remote:{}@host:1", "0".repeat(64));
    let worker = format!("pipeline: {{stages: [cpu, '{remote}'], token_file: t}}");
    for (a, b, more, expected) in [
        (
            "",
            "slora_config: {rounds: 3}",
            "",
            "the group of adapters with these settings has 1; give the others",
        ),
        ("slora_config: {group: g}", "", "", "has 1; give the others"),
        (
            "slora_config: {group: g, density: 0.1}",
            "slora_config: {group: g}",
            "",
            "the group `g` has one start: density 0.01, rounds 20, local_steps 1, learning_rate 0.001, but `a` has \
             density 0.1,",
        ),
        (
            "target_modules: [q_proj]",
            "target_modules: [v_proj]",
            "",
            "has one start: v_proj, but `a` has q_proj",
        ),
        (
            "",
            "use_dora: true",
            "",
            "slora cannot be combined with use_dora",
        ),
        (
            "target_modules: [embed_tokens]",
            "target_modules: [embed_tokens]",
            "",
            "slora cannot begin an adapter of embed_tokens; leave it out",
        ),
        (
            "",
            "",
            "defaults: {objective: {type: dpo}}",
            "slora needs the objective sft, not dpo",
        ),
        (
            "",
            "",
            &worker,
            "slora needs all stages on this machine, not on remote:",
        ),
        (
            "",
            "slora_config: {density: 0}",
            "",
            "must be above 0 and at most 1, got 0",
        ),
        (
            "",
            "slora_config: {density: 1.5}",
            "",
            "must be above 0 and at most 1, got 1.5",
        ),
        (
            "",
            "slora_config: {rounds: 0}",
            "",
            "must be at least 1, got 0",
        ),
        (
            "",
            "slora_config: {local_steps: 0}",
            "",
            "must be at least 1, got 0",
        ),
        (
            "",
            "slora_config: {learning_rate: 0}",
            "",
            "must be finite and above 0, got 0",
        ),
    ] {
        let error = load([a, b], more).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}
