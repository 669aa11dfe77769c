//! Sweeps: grids become adapters that are compared with each other.

use crate::support::{fixture, load};
use loraloom_config::{
    AdapterConfig, EarlyStopping, LoadOptions, RunConfig, StoppingMetric, SweepConfig,
};
use std::path::Path;

const RUN: &str = "\
model: base
datasets:
  rows: {path: rows.jsonl, validation: 0.1}
  more: {path: more.jsonl}
defaults: {dataset: rows, seed: 7, train: {learning_rate: 1e-3}}
adapters:
  - {name: a, dataset: more, tenant: me, priority: 2,
     lora: {lora_alpha: 8}, train: {batch_size: 4}, eval: {steps: 9}, save: {keep: 5}}
";

fn run(sweep: &str) -> (RunConfig, Vec<String>) {
    let text = format!("{RUN}sweep:\n{sweep}\n");
    let loaded = match load(&text, &[]) {
        Ok(loaded) => loaded,
        Err(error) => panic!("{error}\n{text}"),
    };
    let yaml = loaded.config.to_yaml().unwrap();
    let again = match load(&yaml, &[]) {
        Ok(again) => again,
        Err(error) => panic!("{error}\n{yaml}"),
    };
    assert_eq!(again.config, loaded.config, "{yaml}");
    (loaded.config, loaded.warnings)
}

fn names(adapters: &[AdapterConfig]) -> Vec<&str> {
    adapters
        .iter()
        .map(|adapter| adapter.name.as_str())
        .collect()
}

#[test]
fn a_grid_is_every_combination_in_its_order_over_the_base() {
    let (config, warnings) = run(
        "- {name: lr, base: a, grid: {train.learning_rate: [1.0e-4, 3.0e-4], lora.r: [8, 16]}}",
    );
    assert_eq!(warnings, ["no adapter uses dataset `rows`"]);
    let points = ["lr-1e-4-r8", "lr-1e-4-r16", "lr-3e-4-r8", "lr-3e-4-r16"];
    assert_eq!(names(&config.adapters), [&["a"], &points[..]].concat());
    let sweep = SweepConfig {
        name: "lr".to_owned(),
        adapters: points.map(str::to_owned).to_vec(),
        early_stopping: None,
    };
    assert_eq!(config.sweep, [sweep]);
    let base = &config.adapters[0];
    for (point, (rate, r)) in
        config.adapters[1..]
            .iter()
            .zip([(1e-4, 8), (1e-4, 16), (3e-4, 8), (3e-4, 16)])
    {
        let mut expected = base.clone();
        expected.name.clone_from(&point.name);
        expected.train.learning_rate = rate;
        expected.lora.r = r;
        assert_eq!(*point, expected);
    }
}

/// What decides the rows of a step: nothing else of an adapter does.
fn order(adapter: &AdapterConfig) -> (&str, u64, usize, bool, bool) {
    let train = &adapter.train;
    (
        &adapter.dataset,
        adapter.seed,
        train.max_seq_len,
        train.shuffle,
        train.train_on_prompt,
    )
}

#[test]
fn all_points_of_a_sweep_see_the_same_rows_in_the_same_order() {
    let grid = "{lora: {r: [1, 2], lora_dropout: [0, 0.1], use_rslora: [true, false]},
                 train: {adam_beta2: [0.9, 0.99], max_steps: [null, 3]}}";
    let (config, _) = run(&format!(
        "- {{name: s, base: a, grid: {grid}}}\n- {{name: t, grid: {grid}}}"
    ));
    let [first, second] = config.sweep.as_slice() else {
        panic!("two sweeps")
    };
    for (sweep, dataset) in [(first, "more"), (second, "rows")] {
        assert_eq!(sweep.adapters.len(), 32);
        let members: Vec<_> = config
            .adapters
            .iter()
            .filter(|adapter| sweep.adapters.contains(&adapter.name))
            .collect();
        assert_eq!(members.len(), 32);
        for member in members {
            assert_eq!(order(member), (dataset, 7, 512, true, false));
        }
    }
    assert_eq!(
        config.adapters[1].name,
        "s-r1-lora_dropout_0-use_rslora_true-adam_beta2_0.9-max_steps_null"
    );
}

#[test]
fn a_sweep_needs_no_adapter() {
    let text = "model: m\ndatasets: {d: {path: p}}\nsweep: [{name: r, grid: {lora.r: [2, 4]}}]\n";
    for text in [
        text.to_owned(),
        format!("{text}adapters: []"),
        format!("{text}adapters: null"),
    ] {
        let config = load(&text, &[]).unwrap().config;
        assert_eq!(names(&config.adapters), ["r-2", "r-4"]);
        let back = load(&config.to_yaml().unwrap(), &[]).unwrap().config;
        assert_eq!(back, config);
    }
}

#[test]
fn a_point_equal_to_its_base_is_its_base() {
    let sweep = "- {name: lr, base: a, grid: {train.learning_rate: [1e-4, 1e-3]}}";
    let (config, _) = run(sweep);
    assert_eq!(names(&config.adapters), ["a", "lr-1e-4"]);
    assert_eq!(config.sweep[0].adapters, ["lr-1e-4", "a"]);
    let modules = "- {name: on, base: a, grid: {lora.target_modules: [[o_proj, v_proj, k_proj, q_proj], q_proj]}}";
    let (config, _) = run(modules);
    assert_eq!(
        config.adapters[0].lora.target_modules.len(),
        4,
        "the default"
    );
    assert_eq!(config.sweep[0].adapters, ["a", "on-q_proj"]);
    let ends = "- {name: on, base: a, grid: {lora.target_modules: [q_proj, [q_proj, lm_head]]}}";
    assert_eq!(run(ends).0.sweep[0].adapters.len(), 2);
    // The base is in one sweep only.
    let (config, _) = run(&format!(
        "{sweep}\n- {{name: alpha, base: a, grid: {{lora.lora_alpha: [8, 16]}}}}"
    ));
    let [first, second] = [0, 1].map(|sweep: usize| config.sweep[sweep].adapters.join(" "));
    assert_eq!(first, "lr-1e-4 a");
    assert_eq!(second, "alpha-lora_alpha_8 alpha-lora_alpha_16");
    let pair = "- {name: pair, adapters: [a]}";
    let (config, _) = run(&format!("{sweep}\n{pair}"));
    assert_eq!(config.sweep[0].adapters, ["lr-1e-4", "lr-1e-3"]);
}

/// The base is never stopped by a sweep over it.
#[test]
fn a_point_that_can_be_stopped_early_is_an_adapter_of_its_own() {
    let stopping = "early_stopping: {grace_period: 9}";
    let (config, _) = run(&format!(
        "- {{name: lr, base: a, grid: {{train.learning_rate: [1e-4, 1e-3]}}, {stopping}}}"
    ));
    assert_eq!(names(&config.adapters), ["a", "lr-1e-4", "lr-1e-3"]);
    assert_eq!(config.sweep[0].adapters, ["lr-1e-4", "lr-1e-3"]);
    let [base, _, equal] = &config.adapters[..] else {
        panic!("{:?}", config.adapters);
    };
    let renamed = AdapterConfig {
        name: base.name.clone(),
        ..equal.clone()
    };
    assert_eq!(renamed, *base);
}

#[test]
fn early_stopping_is_asked_for_and_compares_by_what_there_is() {
    let stopping = |base: &str, keys: &str| {
        let sweep = format!(
            "- {{name: s, {base} grid: {{lora.r: [4, 8]}}, early_stopping: {{grace_period: 20{keys}}}}}"
        );
        run(&sweep).0.sweep[0].early_stopping.clone().unwrap()
    };
    let by_evaluation = EarlyStopping {
        metric: StoppingMetric::EvalLoss,
        grace_period: 20,
        reduction_factor: 3,
        divergence: None,
    };
    assert_eq!(stopping("", ""), by_evaluation);
    let by_step = EarlyStopping {
        metric: StoppingMetric::TrainLoss,
        ..by_evaluation
    };
    assert_eq!(stopping("base: a,", ""), by_step, "no validation rows");
    let all = EarlyStopping {
        reduction_factor: 2,
        divergence: Some(1.5),
        ..by_step
    };
    let keys = ", metric: train_loss, reduction_factor: 2, divergence: 1.5";
    assert_eq!(stopping("", keys), all);
    let (config, _) = run("- {name: s, grid: {lora.r: [4]}, early_stopping: null}");
    assert_eq!(config.sweep[0].early_stopping, None);
}

/// Pairs have margins and accuracies, rated completions margins alone, and other objectives neither.
#[test]
fn rewards_are_compared_where_the_objective_has_them() {
    let metrics = [
        "eval_loss",
        "eval_rewards/margins",
        "eval_rewards/accuracies",
    ];
    for (objective, count) in [("sft", 1), ("cit", 1), ("kto", 2), ("dpo", 3), ("simpo", 3)] {
        for (at, metric) in metrics.into_iter().enumerate() {
            let overrides = [format!("defaults.objective.type={objective}")];
            let text = format!(
                "{RUN}sweep: [{{name: s, grid: {{lora.r: [4]}}, \
                 early_stopping: {{grace_period: 2, metric: {metric}}}}}]\n"
            );
            match load(&text, &overrides.each_ref().map(String::as_str)) {
                Ok(loaded) => {
                    assert!(at < count, "{objective} {metric}");
                    let stopping = loaded.config.sweep[0].early_stopping.as_ref();
                    assert_eq!(
                        stopping.map(|stopping| stopping.metric.as_str()),
                        Some(metric)
                    );
                }
                Err(error) => {
                    let expected = format!("{objective}, has no {metric}; compare by eval_loss");
                    assert!(
                        at >= count && error.to_string().contains(&expected),
                        "{error}"
                    );
                }
            }
        }
    }
}

#[test]
fn losses_of_different_objectives_are_warned_of() {
    let sweep = |grid: &str, stopping: &str| {
        let overrides = ["defaults.objective.type=dpo"];
        let text = format!("{RUN}sweep: [{{name: s, grid: {{{grid}}}{stopping}}}]\n");
        let loaded = load(&text, &overrides).unwrap();
        let mut warnings = loaded.warnings.iter();
        warnings.any(|warning| warning.contains("losses of different objectives"))
    };
    let betas = "objective.beta: [0.1, 0.2]";
    let by = |metric: &str| format!(", early_stopping: {{grace_period: 2, metric: {metric}}}");
    assert!(sweep(betas, "") && sweep(betas, &by("train_loss")) && sweep(betas, &by("eval_loss")));
    assert!(!sweep(betas, &by("eval_rewards/accuracies")));
    assert!(
        !sweep("lora.r: [1, 2]", "")
            && !sweep("objective.precompute_ref_log_probs: [true, false]", "")
    );
}

#[test]
fn overrides_reach_grids_however_they_are_written() {
    let overrides = |text: &str, overrides: &[&str]| {
        let config = load(text, overrides).unwrap().config;
        let written = names(&config.adapters)[1..].join(" ");
        (written, config.sweep[0].early_stopping.clone())
    };
    for grid in [
        "{train.learning_rate: [1e-4]}",
        "{train: {learning_rate: [1e-4]}}",
    ] {
        let text = format!("{RUN}sweep: [{{name: x.y, base: a, grid: {grid}}}]\n");
        let (points, _) = overrides(&text, &["sweep.x.y.grid.train.learning_rate=[2e-4, 4e-4]"]);
        assert_eq!(points, "x.y-lr2e-4 x.y-lr4e-4");
        let (points, stopping) = overrides(
            &text,
            &[
                "sweep.0.grid.lora.r=[2, 4]",
                "sweep.0.early_stopping.grace_period=8",
                "adapters.a.lora.lora_alpha=3",
            ],
        );
        assert_eq!(points, "x.y-lr1e-4-r2 x.y-lr1e-4-r4");
        assert_eq!(stopping.unwrap().grace_period, 8);
    }
    let (points, _) = overrides(RUN, &["sweep=[{name: n, grid: {lora: {r: [2]}}}]"]);
    assert_eq!(points, "n-r2");
}

#[test]
fn the_resolved_form_names_the_adapters() {
    let config = RunConfig::load(&fixture("sweep.yaml"), &[]).unwrap().config;
    let yaml = config.to_yaml().unwrap();
    let (_, sweep) = yaml.split_once("\nsweep:").unwrap();
    insta::assert_snapshot!(sweep, @r"
    - name: lr
      adapters:
      - lr-1e-4-r8
      - lr-1e-4-r16
      - lr-3e-4-r8
      - lr-3e-4-r16
      early_stopping:
        metric: train_loss
        grace_period: 100
        reduction_factor: 4
        divergence: 2.0
    - name: shapes
      adapters:
      - shapes-q_proj-cosine
      - shapes-q_proj-linear
      - shapes-all-linear-cosine
      - shapes-all-linear-linear
      early_stopping:
        metric: eval_loss
        grace_period: 50
        reduction_factor: 3
        divergence: null
    - name: pair
      adapters:
      - left
      - right
      early_stopping: null
    ");
}

#[test]
fn sweeps_that_are_probably_not_meant_are_warned_of() {
    let (_, warnings) = run(
        "- {name: s, grid: {train.batch_size: [4, 8]}, early_stopping: {grace_period: 10}}\n\
         - {name: t, grid: {train.batch_size: [4, 8]}}",
    );
    insta::assert_snapshot!(warnings.join("\n"), @r"
    sweep `s`: its adapters train on different numbers of rows per step, but early stopping compares them after the same number of steps
    ");
}

#[test]
fn rewards_that_cannot_be_compared_are_warned_of() {
    for (grid, metric, is_warned) in [
        ("objective.beta: [0.1, 0.5]", "eval_loss", true),
        ("objective.beta: [0.1, 0.5]", "eval_rewards/margins", true),
        (
            "objective.beta: [0.1, 0.5]",
            "eval_rewards/accuracies",
            false,
        ),
        ("objective.loss_type: [sigmoid, ipo]", "eval_loss", true),
        (
            "objective.loss_type: [sigmoid, ipo]",
            "eval_rewards/margins",
            false,
        ),
        (
            "objective.reference: [init, base]",
            "eval_rewards/accuracies",
            true,
        ),
        (
            "objective.type: [dpo, orpo]",
            "eval_rewards/accuracies",
            true,
        ),
        (
            "objective.type: [cpo, simpo]",
            "eval_rewards/accuracies",
            true,
        ),
        ("objective.type: [cpo, simpo]", "eval_rewards/margins", true),
        (
            "train.learning_rate: [0.1, 0.2]",
            "eval_rewards/margins",
            false,
        ),
    ] {
        let base = if grid.contains("type: [cpo") {
            "cpo"
        } else {
            "dpo"
        };
        let text = format!(
            "model: m\ndatasets: {{d: {{path: p, validation: 0.1}}}}\n\
             defaults: {{objective: {{type: {base}}}}}\nadapters: [{{name: a}}]\n\
             sweep: [{{name: s, base: a, grid: {{{grid}}}, early_stopping: {{metric: {metric}, grace_period: 10}}}}]\n"
        );
        let loaded = RunConfig::load_yaml(&text, Path::new("x.yaml"), &LoadOptions::default());
        let warnings = loaded.unwrap().warnings;
        let said = warnings
            .iter()
            .any(|warning| warning.contains("cannot be compared"));
        assert_eq!(said, is_warned, "{grid} by {metric}: {warnings:?}");
    }
}

#[test]
fn the_largest_grid_loads() {
    let values: Vec<String> = (1..=32).map(|value| value.to_string()).collect();
    let values = values.join(", ");
    let sweep = "- {name: s, base: a, grid: {lora.r: [VALUES], train.max_steps: [VALUES]}}";
    let (config, _) = run(&sweep.replace("VALUES", &values));
    assert_eq!(config.adapters.len(), 1025);
    assert_eq!(config.sweep[0].adapters[1023], "s-r32-max_steps_32");
}
