//! Every mistake a configuration can have, in the words its author reads.

use crate::support::{GOOD, load, load_named, plain, report};
use loraloom_config::{ConfigError, Place};

fn report_overrides(overrides: &[&str]) -> String {
    let mut lines = Vec::new();
    for text in overrides {
        let error = load(GOOD, &[text]).expect_err(text);
        lines.push(format!("error: {}", plain(&error)));
        lines.extend(error.hint().map(|hint| format!("  hint: {hint}")));
    }
    lines.join("\n")
}

#[test]
fn the_base_of_these_tests_is_good() {
    let loaded = load(GOOD, &[]).unwrap();
    assert_eq!(loaded.warnings, ["no adapter uses dataset `more`"]);
}

#[test]
fn unknown_keys() {
    let text = report(&[
        ("model: base", "modle: base"),
        ("    batch_size: 8", "    lerning_rate: 1e-4"),
        ("    batch_size: 8", "    lr: 1e-4"),
        ("    batch_size: 8", "    per_device_train_batch_size: 4"),
        ("      r: 8", "      rank: 8"),
        ("      r: 8", "      wibble: 8"),
        ("{path: rows.jsonl}", "{path: rows.jsonl, validaton: 0.1}"),
        (
            "{path: rows.jsonl}",
            "{path: rows.jsonl, columns: {promt: a, completion: b}}",
        ),
        ("  - name: a", "  - name: a\n    dropout: 0.1"),
        ("  - name: b", "  - name: b\n    use_dora: true"),
        ("  - name: b", "  - name: b\n    lr: 1e-4"),
        ("  dataset: rows", "  dataset: rows\n  beta: 0.1"),
        ("    batch_size: 8", "    mini_batch_size: 4"),
        ("{path: rows.jsonl}", "{data: rows.jsonl}"),
        ("model: base", "model: base\nscheduler: {max_adapter: 2}"),
        (
            "model: base",
            "model: base\nscheduler: {concurrency_num: 2}",
        ),
        ("model: base", "model: base\npipeline: {stage: [cpu]}"),
    ]);
    insta::assert_snapshot!(text);
}

/// Also the comma of a decimal: YAML reads `0: null` in a mapping within brackets.
#[test]
fn unknown_keys_without_a_value() {
    let text = report(&[
        ("      r: 8", "      rank:"),
        ("- name: a", "- {name: a, train: {learning_rate: 5,0}}"),
        ("    batch_size: 8", "    foo: null"),
        ("  dataset: rows", "  dataset: rows\n  foo: null"),
        ("model: base", "model: base\nscheduler: {max_adapter: null}"),
        ("model: base", "model: base\nfoo: null"),
        ("{path: rows.jsonl}", "{path: rows.jsonl, foo: null}"),
    ]);
    insta::assert_snapshot!(text);
    let text = report_overrides(&["defaults.foo=null", "adapters.b.lora.foo=null"]);
    insta::assert_snapshot!(text);
    let known = GOOD.replace("r: 8", "r: null\n      lora_alpha:");
    assert_eq!(load(&known, &[]).unwrap().config.adapters[1].lora.r, 16);
}

#[test]
fn missing_keys() {
    let text = report(&[
        ("model: base\n", ""),
        ("{path: rows.jsonl}", "{validation: 0.1}"),
        ("- name: a", "- tenant: me"),
        ("  dataset: rows\n", ""),
    ]);
    insta::assert_snapshot!(text);
}

#[test]
fn wrong_types() {
    let text = report(&[
        ("batch_size: 8", "batch_size: many"),
        ("batch_size: 8", "batch_size: -8"),
        ("batch_size: 8", "batch_size: 8.5"),
        ("batch_size: 8", "batch_size: '8'"),
        ("batch_size: 8", "learning_rate: fast"),
        ("batch_size: 8", "shuffle: yes"),
        ("batch_size: 8", "lr_scheduler_type: cosin"),
        ("batch_size: 8", "lr_scheduler_type: 3"),
        ("batch_size: 8", "max_steps: 1e3"),
        ("model: base", "model: 7"),
        ("model: base", "model: base\nseed: -1"),
        ("model: base", "model: base\nseed: 99999999999999999999"),
        ("      r: 8", "      r: 18446744073709551616"),
        ("- name: a", "-\n  - name: a"),
        ("      r: 8", "      r: 8\nseed: -1"),
        ("batch_size: 8", "batch_size: 8\n  seed: 0.5"),
        ("model: base", "model: base\ndevice: gpu"),
        ("model: base", "model: base\ndevice: cuda:x"),
        ("model: base", "model: base\ndtype: bf16"),
        ("path: rows.jsonl", "path: {a: b}"),
        ("path: rows.jsonl", "path: [rows.jsonl, 3]"),
        ("{path: rows.jsonl}", "{path: rows.jsonl, validation: [a]}"),
        (
            "{path: rows.jsonl}",
            "{path: rows.jsonl, validation: '10%'}",
        ),
        (
            "{path: rows.jsonl}",
            "{path: rows.jsonl, validation: '0.1'}",
        ),
        ("{path: rows.jsonl}", "{path: rows.jsonl, columns: text}"),
        (
            "{path: rows.jsonl}",
            "{path: rows.jsonl, columns: {prompt: a}}",
        ),
        (
            "{path: rows.jsonl}",
            "{path: rows.jsonl, columns: {prompt: a, text: b}}",
        ),
        ("{path: rows.jsonl}", "rows.jsonl"),
        ("- name: a", "- a"),
        ("    lora:\n      r: 8", "    lora: 8"),
        ("    lora:\n      r: 8", "    lora: [8, 16]"),
    ]);
    insta::assert_snapshot!(text);
}

#[test]
fn values_out_of_range() {
    let text = report(&[
        ("r: 8", "r: 0"),
        ("r: 8", "lora_alpha: 0"),
        ("r: 8", "lora_alpha: -1"),
        ("r: 8", "lora_dropout: 1"),
        ("r: 8", "lora_dropout: -0.1"),
        ("r: 8", "lora_dropout: .nan"),
        ("r: 8", "target_modules: []"),
        ("r: 8", "target_modules: q_prj"),
        ("r: 8", "target_modules: [q_proj, lm_heads]"),
        ("r: 8", "target_modules: [q_proj, q_proj]"),
        ("r: 8", "target_modules: [all-linear, q_proj]"),
        ("batch_size: 8", "batch_size: 0"),
        ("batch_size: 8", "gradient_accumulation_steps: 0"),
        ("batch_size: 8", "max_seq_len: 1"),
        ("batch_size: 8", "num_epochs: 0"),
        ("batch_size: 8", "max_steps: 0"),
        ("batch_size: 8", "learning_rate: -1e-4"),
        ("batch_size: 8", "learning_rate: .inf"),
        ("batch_size: 8", "learning_rate: 1e999"),
        ("batch_size: 8", "warmup_ratio: 1.5"),
        ("batch_size: 8", "weight_decay: -0.1"),
        ("batch_size: 8", "adam_beta1: 1"),
        ("batch_size: 8", "adam_beta2: -0.5"),
        ("batch_size: 8", "adam_epsilon: -1e-8"),
        ("batch_size: 8", "adam_epsilon: 0"),
        ("batch_size: 8", "max_grad_norm: -1"),
        ("batch_size: 8", "max_grad_norm: 1e-300"),
        ("batch_size: 8", "weight_decay: 1e300"),
        ("batch_size: 8", "batch_size: 1000001"),
        ("batch_size: 8", "gradient_accumulation_steps: 1000000000"),
        ("batch_size: 8", "num_epochs: 1e300"),
        ("batch_size: 8", "max_steps: 4294967296"),
        ("r: 8", "lora_alpha: 1e300"),
        ("r: 8", "lora_alpha: 1e-40"),
        ("model: base", "model: base\noutput_dir: base"),
        ("model: base", "model: base\noutput_dir: ./base/../base/run"),
        ("  - name: b", "  - name: b\n    eval: {steps: 0}"),
        ("  - name: b", "  - name: b\n    eval: {patience: 0}"),
        ("  - name: b", "  - name: b\n    eval: {patience: 2}"),
        ("  dataset: rows", "  dataset: rows\n  eval: {patience: 2}"),
        ("  - name: b", "  - name: b\n    save: {steps: 0}"),
        ("  - name: b", "  - name: b\n    save: {keep: 0}"),
        ("{path: rows.jsonl}", "{path: rows.jsonl, validation: 1}"),
        ("{path: rows.jsonl}", "{path: rows.jsonl, validation: -0.1}"),
        ("{path: rows.jsonl}", "{path: []}"),
        ("{path: rows.jsonl}", "{path: ''}"),
        ("model: base", "model: ''"),
        ("model: base", "model: base\noutput_dir: ''"),
    ]);
    insta::assert_snapshot!(text);
}

#[test]
fn settings_that_conflict() {
    let text = report(&[
        (
            "  train:",
            "  lora: {use_dora: true, target_modules: [embed_tokens]}\n  train:",
        ),
        (
            "dataset: rows",
            "dataset: rows\n  lora: {init_lora_weights: pissa}",
        ),
        (
            "  train:",
            "  objective: {type: dpo, loss_type: simpo}\n  train:",
        ),
        (
            "  train:",
            "  objective: {type: dpo, loss_type: [sigmoid, kto]}\n  train:",
        ),
        (
            "- name: b",
            "- name: b\n    objective: {type: cpo, loss_type: simpo}",
        ),
        (
            "- name: b",
            "- name: b\n    objective: {type: kto, loss_type: ktoo}",
        ),
        (
            "- name: b",
            "- name: b\n    objective: {type: orpo, loss_type: or}",
        ),
        (
            "- name: b",
            "- name: b\n    objective: {type: sft, loss_type: nll}",
        ),
    ]);
    insta::assert_snapshot!(text);
}

#[test]
fn configurations_of_other_trainers_are_named() {
    for (text, tool) in [
        (
            "base_model: m\nadapter: lora\ndatasets: [{path: d.jsonl, type: alpaca}]\nlora_r: 8\n",
            "Axolotl",
        ),
        (
            "model_name_or_path: m\nstage: sft\ndataset: d\nlora_rank: 8\n",
            "LLaMA-Factory",
        ),
    ] {
        let error = load(text, &[]).unwrap_err();
        let expected = format!("a configuration of {tool}, which cannot be read");
        assert!(error.to_string().contains(&expected), "{error}");
        assert!(
            error
                .hint()
                .is_some_and(|hint| hint.contains("from-other-tools.md"))
        );
    }
}

#[test]
fn names() {
    let text = report(&[
        ("- name: b", "- name: a"),
        ("- name: b", "- name: A"),
        ("- name: b", "- name: ../b"),
        ("- name: b", "- name: ..b"),
        ("- name: b", "- name: ''"),
        ("- name: b", "- name: two words"),
        ("- name: b", "- name: émoji"),
        ("- name: b", "- name: b\n    dataset: row"),
        ("dataset: rows", "dataset: wibble"),
    ]);
    insta::assert_snapshot!(text);
}

#[test]
fn nothing_to_train() {
    let text = "model: base\ndatasets: {d: {path: p}}\nadapters: []\n";
    insta::assert_snapshot!(plain(&load(text, &[]).unwrap_err()), @"run.yaml:3:11: `adapters`: must not be empty");
    let text = "model: base\ndatasets: {}\nadapters: [{name: a, dataset: d}]\n";
    let error = load(text, &[]).unwrap_err();
    insta::assert_snapshot!(plain(&error), @"run.yaml:3:31: `adapters[0].dataset`: unknown dataset `d`");
    assert_eq!(error.hint().as_deref(), Some("no dataset is defined"));
}

#[test]
fn pipelines_that_cannot_be() {
    let lines = [
        "pipeline: [cpu]",
        "pipeline: {stages: []}",
        "pipeline: {stages: cpu}",
        "pipeline: {stages: [gpu]}",
        "pipeline: {stages: [cpu, 3]}",
        "pipeline: {stages: [cpu, auto]}",
        "device: cpu\npipeline: {stages: ['cuda:0']}",
        "device: cpu\npipeline: {stages: ['cuda:0', cpu]}",
        "device: cuda\npipeline: {stages: ['REMOTE@y:1'], token_file: t}",
        "device: REMOTE@y:1",
        "pipeline: {stages: [cpu, 'remote:']}",
        "pipeline: {stages: [cpu, 'REMOTE']}",
        "pipeline: {stages: [cpu, 'REMOTE@y']}",
        "pipeline: {stages: [cpu, 'REMOTE0@y:1']}",
        "pipeline: {stages: [cpu, 'REMOTE@two words:1']}",
        "pipeline: {stages: [cpu, 'REMOTE@fe80::1:80']}",
        "pipeline: {stages: [cpu, 'REMOTE@y:0']}",
        "pipeline: {stages: ['REMOTE@y:1', cpu, 'REMOTE@y:1'], token_file: t}",
        "pipeline: {stages: [cpu, 'REMOTE@y:1']}",
        "pipeline: {stages: ['REMOTE@y:1'], token_file: ''}",
        "pipeline: {balance: [11, 11]}",
        "pipeline: {stages: [cpu, cpu], balance: [22]}",
        "pipeline: {stages: [cpu, cpu], balance: [22, 0]}",
        "pipeline: {stages: [cpu, cpu], balance: [22, -1]}",
        "pipeline: {stages: [cpu, cpu], balance: [[11, 11], [22]]}",
        "pipeline: {stages: [cpu, cpu], balance: [[11, 11], [22, 0]]}",
        "pipeline: {stages: [cpu, cpu], balance: [11, [11, 11]]}",
        "pipeline: {stages: [cpu, cpu], balance: [[11, 11], []]}",
        "pipeline: {balance: atuo}",
        "pipeline: {balance: 11}",
        "pipeline: {schedule: gpip}",
        "pipeline: {schedule: 1f1b}",
        "pipeline: {schedule: [gpipe]}",
        "pipeline: {microbatches: 0}",
        "pipeline: {microbatches: many}",
        "pipeline: {extra_warmup: 17}",
        "pipeline: {extra_warmup: -1}",
        "pipeline: {step_deadline: 0}",
        "pipeline: {step_deadline: .inf}",
        "pipeline: {stage: [cpu]}",
        "pipeline: {micro_batches: 2}",
    ]
    .map(|line| format!("model: base\n{line}"))
    .map(|text| text.replace("REMOTE", &format!("remote:{}", "0a".repeat(32))));
    let edits: Vec<_> = lines
        .iter()
        .map(|text| ("model: base", text.as_str()))
        .collect();
    let text = report(&edits).replace(&"0a".repeat(32), "[ID]");
    insta::assert_snapshot!(text);
}

#[test]
fn schedulers_that_cannot_be() {
    let lines = [
        "policy: fifo",
        "policy: best_effort",
        "policy: 3",
        "memory_limit: 0",
        "memory_limit: 1.5",
        "memory_limit: 20",
        "memory_limit: .nan",
        "memory_limit: 20GiBs",
        "memory_limit: 90%",
        "memory_limit: 0GiB",
        "memory_limit: [1]",
        "max_slowdown: 0.9",
        "max_slowdown: .inf",
        "max_adapters: 0",
        "aging: 0",
        "aging: soon",
    ]
    .map(|line| format!("model: base\nscheduler: {{{line}}}"));
    let edits: Vec<_> = lines
        .iter()
        .map(|text| ("model: base", text.as_str()))
        .collect();
    insta::assert_snapshot!(report(&edits));
}

#[test]
fn overrides() {
    let text = report_overrides(&[
        "defaults.train.lerning_rate=1e-4",
        "defaults.train.batch_size=0",
        "defaults.train.batch_size=x",
        "defautls.train.batch_size=4",
        "adapters.c.lora.r=8",
        "adapters.7.lora.r=8",
        "adapters.b.lora.r=0",
        "datasets.row.path=x",
        "model.path=x",
        "defaults.train.batch_size.size=3",
        "output_dir",
        "=3",
        "defaults..train=3",
        "adapters.b.name=a",
        "adapters.a=",
        "adapters.a=null",
        "adapters.0=null",
        "adapters.c=null",
        "adapters.c=3",
        "adapters.c={dataset: row}",
        "adapters.c={name: d}",
        "adapters.b={name: a}",
        "adapters.=3",
        "datasets.row=null",
        "datasets.rows=null",
        "sweep.lr=null",
        "datasets.new={paht: x}",
        "output_dir=[a",
        "output_dir=",
        "seed=-1",
        "model=!home base",
        "datasets.rows.validation=10%",
        "datasets.rows.validation='0,1'",
        "adapters.b.eval.patience=2",
        "pipeline.stages=[auto, cpu]",
        "pipeline.balance=[2, 2]",
        "pipeline.stage=[cpu]",
        "sweep.lr.grid.lora.r=[8]",
        "sweep=[{name: lr, grid: {lora.rank: [8]}}]",
        "scheduler.policy=fiar",
    ]);
    insta::assert_snapshot!(text);
}

#[test]
fn malformed_files() {
    let items = ["1", "*a", "*b", "*c", "*d", "*e", "*f"];
    let lines = items
        .iter()
        .zip('a'..='g')
        .map(|(item, name)| format!("{name}: &{name} [{}]\n", [*item; 9].join(", ")));
    let bomb: String = lines.collect();
    let deep = format!("model: {}{}\n", "[".repeat(100), "]".repeat(100));
    let long = format!("seed: {}\n", "9a".repeat(1000));
    let report = [
        ("run.yaml", "model: [base\n"),
        ("run.yaml", "model: base\nmodel: other\n"),
        ("run.yaml", "model: base\n---\nmodel: other\n"),
        ("run.yaml", ""),
        ("run.yaml", "just text"),
        ("run.json", "{\"model\": \"base\",}"),
        ("run.json", "{model: base}"),
        ("run.json", "{\"model\": \"base\",\n \"modle\": 1}"),
        ("run.toml", "model = base\n"),
        (
            "run.toml",
            "model = \"base\"\n\n[defaults.train]\nlerning_rate = 1\n",
        ),
        ("run.toml", "model = \"base\"\nseed = 2020-01-01\n"),
        ("run.txt", "model: base\n"),
        ("run.yaml", &bomb),
        ("run.yaml", "model: &m [*m]\n"),
        ("run.yaml", "model: *m\n"),
        ("run.yaml", "model: *\n"),
        ("run.yaml", "model: @m\n"),
        ("run.yaml", "model: a: b\n"),
        ("run.yaml", "model: base\n x: y\n"),
        ("run.yaml", "model:\n\tx: y\n"),
        ("run.yaml", "model: \"a\\q\"\n"),
        ("run.yaml", "model: \"a\nseed: 1\n"),
        ("run.yaml", "model: \"\\ud800\"\n"),
        ("run.yaml", "model: \"\\xZZ\"\n"),
        ("run.yaml", "model: a\u{1}b\n"),
        ("run.yaml", "model: [a,,b]\n"),
        ("run.yaml", "seed: !!int abc\n"),
        ("run.yaml", "model: !env BASE\n"),
        ("run.yaml", "model: !!env BASE\n"),
        ("run.yaml", "!env model: base\n"),
        ("run.yaml", "scheduler: !fair {policy: fair}\n"),
        ("run.yaml", "adapters: [!env [a]]\n"),
        ("run.yaml", "~: 2\n"),
        ("run.yaml", "[a, b]: 2\n"),
        ("run.yaml", "<<: 3\n"),
        ("run.yaml", &deep),
        ("run.yaml", &long),
        ("run.json", ""),
        ("run.json", "{\"model\": nope}"),
        ("run.json", "{\"model\": \"a\\ud800b\"}"),
        ("run.json", "{\"model\": \"base\""),
        ("run.json", "{} {}"),
        ("run.json", "{\"model\": \"a\tb\"}"),
        ("run.toml", "model = \"a\n"),
        ("run.toml", "model = \"\\ud800\"\n"),
        ("run.toml", "seed = 1__0\n"),
    ]
    .map(|(name, text)| {
        let error = load_named(name, text, &[]).expect_err(text);
        let shown: String = text.chars().take(60).collect();
        format!("{shown:?}\n  error: {}", plain(&error))
    });
    let text = report.join("\n");
    insta::assert_snapshot!(text);
}

#[test]
fn files_of_another_encoding() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.yaml");
    std::fs::write(&path, b"model: base\noutput_dir: caf\xe9\n").unwrap();
    let error = loraloom_config::RunConfig::load(&path, &[]).unwrap_err();
    insta::assert_snapshot!(plain(&error), @"run.yaml:2:16: byte 0xe9 is not UTF-8 text; save the file as UTF-8");
}

#[test]
fn entries_are_replaced_and_added() {
    let names = |overrides: &[&str]| {
        let config = load(GOOD, overrides).unwrap().config;
        let adapters = config.adapters.iter();
        let adapters = adapters.map(|adapter| {
            let (name, rank, dataset) = (&adapter.name, adapter.lora.r, &adapter.dataset);
            format!("{name} {rank} {dataset}")
        });
        let datasets = config.datasets.keys().cloned();
        adapters.chain(datasets).collect::<Vec<_>>()
    };
    let (a, b) = ("a 16 rows", "b 8 rows");
    assert_eq!(
        names(&["adapters.b={dataset: more}"]),
        [a, "b 16 more", "more", "rows"]
    );
    assert_eq!(
        names(&["adapters.c={lora: {r: 2}}", "adapters.c.dataset=more"]),
        [a, b, "c 2 more", "more", "rows"]
    );
    assert_eq!(
        names(&["datasets.0={path: x}", "datasets.more={path: y}"]),
        [a, b, "0", "more", "rows"]
    );
}

#[test]
fn an_absent_file_is_named() {
    let error = loraloom_config::RunConfig::load("absent.yaml".as_ref(), &[]).unwrap_err();
    assert!(
        error.to_string().starts_with("cannot read absent.yaml: "),
        "{error}"
    );
}

#[test]
fn a_mistake_in_defaults_is_reported_where_it_is_written() {
    let text = GOOD.replace("batch_size: 8", "batch_size: 0");
    let Err(ConfigError::Invalid {
        place: Place::At { line, column, .. },
        key,
        ..
    }) = load(&text, &[])
    else {
        panic!("accepted")
    };
    assert_eq!(
        (line, column, key.as_str()),
        (8, 17, "defaults.train.batch_size")
    );
}

#[test]
fn objectives_are_refused_with_settings_that_they_cannot_have() {
    for (objective, others, said) in [
        (
            "{type: kto}",
            "train.batch_size=1",
            "must be at least 2 for `kto`",
        ),
        (
            "{type: cit}",
            "train.batch_size=1",
            "must be at least 2 for `cit`",
        ),
        (
            "{type: dpo, loss_type: [sigmoid, sft], loss_weights: [1]}",
            "train.batch_size=2",
            "loss_weights",
        ),
        (
            "{type: dpo, label_smoothing: 0.1}",
            "train.batch_size=2",
            "label_smoothing",
        ),
        ("{type: dpo, beta: -1}", "train.batch_size=2", "beta"),
        (
            "{type: sft}",
            "lora={init_lora_weights: pissa, lora_dropout: 0.1}",
            "needs `lora_dropout: 0`",
        ),
    ] {
        let overrides = [
            format!("adapters.b.objective={objective}"),
            format!("adapters.b.{others}"),
        ];
        let error = load(GOOD, &[&overrides[0], &overrides[1]]).expect_err(objective);
        let text = plain(&error);
        assert!(text.contains(said), "{objective}: {text}");
    }
    // It trains without dropout.
    let dpo = [
        "adapters.b.objective={type: dpo}",
        "adapters.b.lora={init_lora_weights: pissa, lora_dropout: 0.1}",
    ];
    load(GOOD, &dpo).unwrap();
}

#[test]
fn null_in_an_adapter_turns_off_what_defaults_turn_on() {
    let with = GOOD.replace(
        "    batch_size: 8",
        "    batch_size: 8\n    loraplus_lr_ratio: 16.0",
    );
    let ratio = |overrides: &[&str]| {
        let config = load(&with, overrides).unwrap().config;
        config.adapters[1].train.loraplus_lr_ratio
    };
    assert_eq!(ratio(&[]), Some(16.0));
    assert_eq!(ratio(&["adapters.b.train.loraplus_lr_ratio=null"]), None);
}
