//! What the caller of a configuration says for it: the command line, or the server.

use std::path::{Path, PathBuf};

use crate::support::fixture;
use loraloom_config::{LoadOptions, RunConfig};

#[test]
fn options_of_the_caller_replace_the_files() {
    let options = LoadOptions {
        base_model: Some("other".into()),
        output_dir: Some("there".into()),
        ..LoadOptions::default()
    };
    let config = RunConfig::load_with(&fixture("full.yaml"), &options)
        .unwrap()
        .config;
    assert_eq!(config.model, PathBuf::from("other"));
    assert_eq!(config.output_dir, PathBuf::from("there"));

    // A shell has expanded them.
    let literal = PathBuf::from("a$HOME/~b");
    let options = LoadOptions {
        base_model: Some(literal.clone()),
        output_dir: Some(literal.with_file_name("$$c")),
        ..LoadOptions::default()
    };
    let loaded = RunConfig::load_with(&fixture("full.yaml"), &options);
    let config = loaded.unwrap().config;
    assert_eq!(config.model, literal);
    assert_eq!(config.output_dir, literal.with_file_name("$$c"));
}

#[test]
fn a_model_of_the_caller_is_used_where_the_file_has_none() {
    let options = LoadOptions {
        default_model: Some("server's".into()),
        ..LoadOptions::default()
    };
    let model = |text: &str| {
        let loaded = RunConfig::load_yaml(text, Path::new("task.yaml"), &options);
        loaded.unwrap().config.model
    };
    let rest = "datasets: {d: {path: p}}\nadapters: [{name: a}]";
    assert_eq!(model(rest), PathBuf::from("server's"));
    assert_eq!(model(&format!("model: own\n{rest}")), PathBuf::from("own"));
}

#[test]
fn adapters_may_come_later_only_where_the_caller_says_so() {
    let load = |text: &str, without_adapters| {
        let options = LoadOptions {
            without_adapters,
            ..LoadOptions::default()
        };
        RunConfig::load_yaml(text, Path::new("server.yaml"), &options)
    };
    let loaded = load("model: m", true).unwrap();
    assert!(loaded.config.adapters.is_empty() && loaded.warnings.is_empty());
    let error = load("model: m", false).unwrap_err().to_string();
    assert!(
        error.contains("server.yaml") && error.contains("datasets"),
        "{error}"
    );
    let unused = "model: m\ndatasets: {d: {path: p}}\nadapters: []";
    assert!(load(unused, true).unwrap().warnings.is_empty());
    assert!(load(unused, false).is_err());
    // Tasks have all settings of adapters from where they are submitted.
    for (setting, is_used) in [
        ("defaults.train.batch_size=3", false),
        ("defaults={}", false),
        ("seed=3", false),
        ("datasets.d={path: p}", false),
        ("sweep=[]", false),
        ("scheduler.policy=fair", true),
        ("adapters=[]", true),
    ] {
        let options = LoadOptions {
            overrides: vec![setting.to_owned()],
            without_adapters: true,
            ..LoadOptions::default()
        };
        let loaded = RunConfig::load_yaml("model: m", Path::new("server.yaml"), &options);
        assert_eq!(loaded.is_ok(), is_used, "{setting}: {loaded:?}");
    }
    // Adapters that are there are checked as ever.
    let wrong = "model: m\nadapters: [{name: a, lora: {r: 0}}]";
    assert!(load(wrong, true).is_err());
}
