//! Formats, defaults, layering, overrides, and the way back to a file.
#![expect(clippy::float_cmp, reason = "what is read is exactly what is written")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::support::{fixture, load};
use loraloom_config::{
    AdapterConfig, BalanceChoice, ColumnMap, DatasetConfig, DeviceChoice, DtypeChoice, EvaConfig,
    EvalSettings, InitLoraWeights, LoadOptions, LoraSettings, LrSchedulerKwargs, LrSchedulerType,
    MemoryLimit, ObjectiveSettings, PipelineConfig, PolicyChoice, RunConfig, SaveSettings,
    Schedule, SchedulerConfig, SloraConfig, StageLocation, TargetModule, TrainSettings, Validation,
    WorkerAddress,
};

fn full(name: &str) -> RunConfig {
    let loaded = RunConfig::load(&fixture(name), &[]).unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new());
    loaded.config
}

#[test]
fn defaults_are_those_of_the_interface() {
    let config = RunConfig::load(&fixture("minimal.yaml"), &[])
        .unwrap()
        .config;
    let modules = &TargetModule::ALL[..4];
    let expected = RunConfig {
        model: fixture("models/base"),
        output_dir: fixture("runs/minimal"),
        device: DeviceChoice::Auto,
        dtype: DtypeChoice::Auto,
        quantization: None,
        seed: 0,
        gradient_checkpointing: false,
        pipeline: PipelineConfig {
            stages: vec![StageLocation::Device(DeviceChoice::Auto)],
            balance: BalanceChoice::Auto,
            schedule: Schedule::LoraPp,
            microbatches: 1,
            extra_warmup: 0,
            token_file: None,
            step_deadline: 600.0,
        },
        scheduler: SchedulerConfig {
            policy: PolicyChoice::BestEffortFifo,
            memory_limit: MemoryLimit::Fraction(0.9),
            max_slowdown: 1.2,
            max_adapters: None,
            aging: None,
        },
        datasets: [(
            "rows".to_owned(),
            DatasetConfig {
                path: vec![fixture("rows.jsonl")],
                columns: None,
                template: None,
                validation: Validation::Fraction(0.0),
            },
        )]
        .into(),
        adapters: vec![AdapterConfig {
            name: "only".to_owned(),
            dataset: "rows".to_owned(),
            priority: 0,
            tenant: "default".to_owned(),
            init_from: None,
            seed: 0,
            lora: LoraSettings {
                r: 16,
                lora_alpha: 32.0,
                lora_dropout: 0.05,
                target_modules: modules.to_vec(),
                use_rslora: false,
                use_dora: false,
                init_lora_weights: InitLoraWeights::Uniform,
                eva_config: None,
                slora_config: SloraConfig::default(),
                lora_fa: false,
            },
            objective: ObjectiveSettings::default(),
            train: TrainSettings {
                batch_size: 8,
                gradient_accumulation_steps: 1,
                max_seq_len: 512,
                num_epochs: 10.0,
                max_steps: None,
                learning_rate: 3.0e-4,
                lr_scheduler_type: LrSchedulerType::Cosine,
                lr_scheduler_kwargs: LrSchedulerKwargs::default(),
                warmup_steps: 0,
                warmup_ratio: 0.0,
                loraplus_lr_ratio: None,
                loraplus_lr_embedding: None,
                weight_decay: 0.0,
                adam_beta1: 0.9,
                adam_beta2: 0.999,
                adam_epsilon: 1.0e-8,
                max_grad_norm: 1.0,
                label_smoothing_factor: 0.0,
                shuffle: true,
                train_on_prompt: false,
            },
            eval: EvalSettings {
                steps: 200,
                patience: None,
            },
            save: SaveSettings {
                steps: 500,
                keep: 2,
            },
        }],
        sweep: Vec::new(),
    };
    assert_eq!(config, expected);
}

#[test]
fn every_field_of_a_full_file_arrives() {
    let config = full("full.yaml");
    assert_eq!(config.device, DeviceChoice::Cuda(Some(1)));
    assert_eq!(config.dtype, DtypeChoice::Bfloat16);
    assert_eq!((config.seed, config.gradient_checkpointing), (7, true));
    let scheduler = SchedulerConfig {
        policy: PolicyChoice::Fair,
        memory_limit: MemoryLimit::Bytes(20 << 30),
        max_slowdown: 1.5,
        max_adapters: Some(2),
        aging: Some(60.0),
    };
    assert_eq!(config.scheduler, scheduler);
    let worker = WorkerAddress {
        id: "0123456789abcdef".repeat(4),
        host: "10.0.0.7".to_owned(),
        port: 4433,
    };
    let pipeline = PipelineConfig {
        stages: vec![
            StageLocation::Device(DeviceChoice::Cuda(Some(1))),
            StageLocation::Remote(worker),
        ],
        balance: BalanceChoice::Layers(vec![10, 12]),
        schedule: Schedule::OneFOneB,
        microbatches: 2,
        extra_warmup: 3,
        token_file: Some(fixture("token.txt")),
        step_deadline: 90.5,
    };
    assert_eq!(config.pipeline, pipeline);
    assert!(config.pipeline.has_workers());
    assert_eq!(config.pipeline.groups(), 5);
    let gsm8k = &config.datasets["gsm8k"];
    assert_eq!(gsm8k.path, [fixture("a.jsonl"), fixture("b.jsonl")]);
    assert_eq!(gsm8k.validation, Validation::Fraction(0.02));
    let chat = &config.datasets["chat"];
    assert_eq!(chat.validation, Validation::File(fixture("held.jsonl")));
    assert_eq!(chat.template.as_deref(), Some("{{ q }}\n{{ a }}"));
    let columns = ColumnMap::Instruction {
        instruction: "q".to_owned(),
        input: Some("i".to_owned()),
        output: "a".to_owned(),
    };
    assert_eq!(chat.columns, Some(columns));

    let [a, _] = config.adapters.as_slice() else {
        panic!("two adapters")
    };
    assert_eq!(
        (a.dataset.as_str(), a.priority, a.tenant.as_str(), a.seed),
        ("gsm8k", -1, "lab", 7)
    );
    assert_eq!(a.lora.target_modules, TargetModule::ALL);
    assert!(a.lora.use_rslora && a.lora.r == 8 && a.lora.lora_dropout == 0.0);
    assert_eq!(a.train.max_steps, Some(100));
    assert_eq!(a.train.learning_rate, 1e-4);
    assert_eq!(a.train.adam_epsilon, 1e-6);
    assert_eq!(
        a.train.lr_scheduler_type,
        LrSchedulerType::ConstantWithWarmup
    );
    assert_eq!(
        a.eval,
        EvalSettings {
            steps: 10,
            patience: Some(3)
        }
    );
    assert_eq!(a.save, SaveSettings { steps: 20, keep: 3 });
}

#[test]
fn null_leaves_keys_to_their_defaults() {
    let load = |text: &str| {
        let text =
            format!("model: m\ndatasets: {{d: {{path: p}}}}\nadapters: [{{name: a}}]\n{text}");
        let loaded = RunConfig::load_yaml(&text, Path::new("c.yaml"), &LoadOptions::default());
        loaded.unwrap().config
    };
    let nulls = "output_dir: ~\ndefaults: {lora: {r: ~, target_modules: ~}, train: {batch_size: ~, shuffle: ~}, \
                 eval: {steps: ~}, save: ~}";
    assert_eq!(load(nulls), load(""));
}

#[test]
fn an_adapter_overrides_defaults_field_by_field_and_null_undoes_them() {
    let config = full("full.yaml");
    let b = &config.adapters[1];
    assert_eq!(
        (b.dataset.as_str(), b.priority, b.tenant.as_str()),
        ("chat", 5, "me")
    );
    assert_eq!(b.seed, u64::MAX);
    assert_eq!(b.init_from, Some(fixture("some/adapter")));
    assert_eq!(b.lora.r, 64);
    assert_eq!(b.lora.lora_alpha, 16.0, "of the defaults");
    assert_eq!(
        b.lora.target_modules,
        [TargetModule::QProj, TargetModule::DownProj]
    );
    assert_eq!(b.train.max_steps, None);
    assert_eq!(b.train.batch_size, 4, "of the defaults");
    assert_eq!(b.train.learning_rate, 1e9, "absurd, but a number");
    assert_eq!(
        b.eval,
        EvalSettings {
            steps: 10,
            patience: None
        }
    );
}

#[test]
fn toml_and_json_say_the_same_as_yaml() {
    assert_eq!(full("sweep.toml"), full("sweep.yaml"));
    assert_eq!(full("sweep.json"), full("sweep.yaml"));
    assert_eq!(full("full.toml"), full("full.yaml"));
    assert_eq!(full("full.json"), full("full.yaml"));
}

#[test]
fn a_written_configuration_loads_back_equal() {
    for name in ["full.yaml", "minimal.yaml", "sweep.yaml"] {
        let config = RunConfig::load(&fixture(name), &[]).unwrap().config;
        let yaml = config.to_yaml().unwrap();
        let back = load(&yaml, &[])
            .unwrap_or_else(|error| panic!("{error}\n{yaml}"))
            .config;
        assert_eq!(back, config, "{yaml}");
    }
}

#[test]
fn odd_strings_and_numbers_survive_the_round_trip() {
    let mut config = full("full.yaml");
    config.model = "/a: b #c".into();
    config.adapters[0].name = "1e3".to_owned();
    config.adapters[1].name = "no".to_owned();
    config.adapters[0].tenant = "null".to_owned();
    config.adapters[0].train.learning_rate = 0.1 + 0.2;
    config.adapters[0].train.num_epochs = 1e-30;
    let odd = "{% if x %}\n  - y: 'z'\n{% endif %}\n\n  \ttail \n".to_owned();
    config.datasets.get_mut("chat").unwrap().template = Some(odd);
    let yaml = config.to_yaml().unwrap();
    let back = load(&yaml, &[])
        .unwrap_or_else(|error| panic!("{error}\n{yaml}"))
        .config;
    assert_eq!(back, config, "{yaml}");
}

#[test]
fn overrides_reach_every_part_of_a_file() {
    let overrides = [
        "output_dir=elsewhere",
        "defaults.train.learning_rate=2e-5",
        "adapters.a.lora.r=4",
        "adapters.1.train={max_steps: 9}",
        "datasets.gsm8k.path=[x.jsonl, y.jsonl]",
        "scheduler.max_adapters=null",
        "scheduler.memory_limit=0.5",
        "scheduler.policy=strict_fifo",
        "defaults.save.keep=1",
        "adapters.b.lora.target_modules=all-linear",
    ]
    .map(str::to_owned);
    let config = RunConfig::load(&fixture("full.yaml"), &overrides)
        .unwrap()
        .config;
    assert_eq!(config.output_dir, PathBuf::from("elsewhere"));
    assert_eq!(config.adapters[0].train.learning_rate, 2e-5);
    assert_eq!(config.adapters[0].lora.r, 4);
    assert_eq!(config.adapters[1].train.max_steps, Some(9));
    assert_eq!(
        config.adapters[1].train.learning_rate, 2e-5,
        "its own went with the mapping"
    );
    assert_eq!(config.datasets["gsm8k"].path.len(), 2);
    assert_eq!(config.scheduler.max_adapters, None);
    assert_eq!(config.scheduler.memory_limit, MemoryLimit::Fraction(0.5));
    assert_eq!(config.scheduler.policy, PolicyChoice::StrictFifo);
    assert_eq!(config.adapters[1].save.keep, 1);
    assert_eq!(config.adapters[1].lora.target_modules, TargetModule::ALL);
}

#[test]
fn an_override_makes_the_mappings_it_needs_and_finds_names_with_dots() {
    let text =
        "model: m\ndatasets: {d: {path: p}}\nadapters: [{name: llama3.1-r8}, {name: llama3}]";
    let overrides = [
        "defaults.train.batch_size=3",
        "adapters.llama3.1-r8.lora.r=2",
    ];
    let config = load(text, &overrides).unwrap().config;
    assert_eq!(config.adapters[0].train.batch_size, 3);
    assert_eq!(
        (config.adapters[0].lora.r, config.adapters[1].lora.r),
        (2, 16)
    );
}

/// `a.lora.r` is `lora.r` of adapter `a`, or `r` of adapter `a.lora`, which has none.
#[test]
fn a_name_with_dots_does_not_hide_the_settings_of_another() {
    let text = "model: m\ndatasets: {d: {path: p}, d.columns: {path: q}}\ndefaults: {dataset: d}\n\
                adapters: [{name: a}, {name: a.lora}, {name: a.lora.lora}]";
    let ranks = |set: &str| {
        let config = load(text, &[set]).unwrap().config;
        config
            .adapters
            .iter()
            .map(|adapter| adapter.lora.r)
            .collect::<Vec<_>>()
    };
    assert_eq!(ranks("adapters.a.lora.r=2"), [2, 16, 16]);
    assert_eq!(ranks("adapters.a.lora.lora.r=2"), [16, 2, 16]);
    assert_eq!(ranks("adapters.a.lora.lora.lora.r=2"), [16, 16, 2]);
    assert_eq!(ranks("adapters.0.lora={r: 2}"), [2, 16, 16]);
    for (set, problem) in [
        (
            "adapters.a.lora={r: 2}",
            "it is ambiguous, adapter `a.lora` or `lora` of adapter `a`: write `adapters.1` or \
             `adapters.0.lora`",
        ),
        (
            "adapters.a.lora.lora={r: 2}",
            "it is ambiguous, adapter `a.lora.lora` or `lora` of adapter `a.lora`: write `adapters.2` \
             or `adapters.1.lora`",
        ),
        (
            "datasets.d.columns={text: t}",
            "it is ambiguous, dataset `d.columns` or `columns` of dataset `d`: rename one of the two",
        ),
    ] {
        let error = load(text, &[set]).unwrap_err().to_string();
        assert!(error.ends_with(problem), "{error}");
    }
}

#[test]
fn a_resolved_configuration_is_the_same_from_text() {
    let config = RunConfig::load(&fixture("full.yaml"), &[]).unwrap().config;
    let text = config.to_yaml().unwrap();
    let again = RunConfig::load_yaml(&text, Path::new("again"), &LoadOptions::default());
    assert_eq!(again.unwrap().config, config);
}

/// Also the default of `output_dir`; overrides and options start from the working directory.
#[test]
fn relative_paths_start_from_the_files_folder() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("configs/run.yaml");
    let write = |text: &str| fs::write(&path, text).unwrap();
    fs::create_dir(path.parent().unwrap()).unwrap();
    let rest = "model: ../m\ndatasets: {d: {path: [rows.jsonl, /none.jsonl], validation: ./v.jsonl}}\n\
                pipeline: {stages: [cpu], token_file: t}\n\
                adapters: [{name: a, init_from: ../../b}]\n";
    write(&format!("output_dir: ../out\n{rest}"));
    let config = RunConfig::load(&path, &[]).unwrap().config;
    let at = |name: &str| directory.path().join(name);
    assert_eq!(config.model, at("m"));
    assert_eq!(config.output_dir, at("out"));
    let data = &config.datasets["d"];
    assert_eq!(data.path, [at("configs/rows.jsonl"), "/none.jsonl".into()]);
    assert_eq!(data.validation, Validation::File(at("configs/v.jsonl")));
    assert_eq!(config.pipeline.token_file, Some(at("configs/t")));
    let beside = directory.path().parent().unwrap().join("b");
    assert_eq!(config.adapters[0].init_from, Some(beside));

    write(rest);
    let config = RunConfig::load(&path, &["datasets.d.path=rows.jsonl".into()]);
    let config = config.unwrap().config;
    assert_eq!(config.output_dir, at("configs/runs/run"));
    assert_eq!(config.datasets["d"].path, [PathBuf::from("rows.jsonl")]);
    let options = LoadOptions {
        base_model: Some("m2".into()),
        output_dir: Some("out2".into()),
        ..LoadOptions::default()
    };
    let config = RunConfig::load_with(&path, &options).unwrap().config;
    assert_eq!(config.model, PathBuf::from("m2"));
    assert_eq!(config.output_dir, PathBuf::from("out2"));

    // As it was before: a file of the working directory.
    write("model: Cargo.toml\ndatasets: {d: {path: p}}\nadapters: [{name: a}]\n");
    let error = RunConfig::load(&path, &[]).unwrap_err().to_string();
    assert!(
        error.contains("run.yaml:1:8: `model`: `Cargo.toml` is not in"),
        "{error}"
    );
    assert!(error.contains("write an absolute path"), "{error}");
}

#[test]
fn variables_and_homes_are_expanded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.yaml");
    let text = "model: $CARGO_MANIFEST_DIR/m\noutput_dir: ~/out\n\
                datasets: {d: {path: '$$x', validation: '${CARGO_MANIFEST_DIR}/v'}}\n\
                adapters: [{name: a}]\n";
    fs::write(&path, text).unwrap();
    let config = RunConfig::load(&path, &[]).unwrap().config;
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(config.model, here.join("m"));
    assert_eq!(config.output_dir, std::env::home_dir().unwrap().join("out"));
    assert_eq!(config.datasets["d"].path, [directory.path().join("$x")]);
    assert_eq!(
        config.datasets["d"].validation,
        Validation::File(here.join("v"))
    );
    fs::write(&path, config.to_yaml().unwrap()).unwrap();
    assert_eq!(RunConfig::load(&path, &[]).unwrap().config, config);

    let unset = RunConfig::load(&path, &["output_dir=$LORALOOM_UNSET/x".into()]);
    let error = unset.unwrap_err().to_string();
    assert!(error.contains("variable `LORALOOM_UNSET`"), "{error}");
}

#[test]
fn a_written_configuration_is_the_same_from_everywhere() {
    let text = "model: m\noutput_dir: ../o\ndatasets: {d: {path: [p], validation: v}}\n\
                adapters: [{name: a, init_from: i}]\n";
    let config = RunConfig::load_yaml(text, Path::new("a.yaml"), &LoadOptions::default());
    let config = config.unwrap().config;
    let here = std::env::current_dir().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.resolved.yaml");
    fs::write(&path, config.to_yaml().unwrap()).unwrap();
    let again = RunConfig::load(&path, &[]).unwrap().config;
    assert_eq!(again, config.absolute().unwrap());
    assert_eq!(again.model, here.join("m"));
    assert_eq!(again.output_dir, here.parent().unwrap().join("o"));
    assert_eq!(again.datasets["d"].path, [here.join("p")]);
    assert_eq!(
        again.datasets["d"].validation,
        Validation::File(here.join("v"))
    );
    assert_eq!(again.adapters[0].init_from, Some(here.join("i")));
}

#[test]
fn legal_but_odd_settings_are_warned_of() {
    let text = "model: m\ndatasets: {d: {path: p}, spare: {path: p}}\n\
                pipeline: {stages: [cpu, cuda, 'wgpu:0', cpu, cuda], token_file: t, microbatches: 5}\n\
                defaults: {train: {batch_size: 4}}\nadapters:\n\
                - {name: a, dataset: d, train: {lr_scheduler_type: constant, warmup_steps: 3, warmup_ratio: 0.1}}\n\
                - {name: b, dataset: d, train: {learning_rate: 0}}\n";
    let warnings = load(text, &[]).unwrap().warnings;
    insta::assert_snapshot!(warnings.join("\n"), @r"
    stages 1 and 4 of the pipeline are both on `cuda` and take turns
    `pipeline.token_file` has no effect: no stage is a worker
    adapter `a`: the `constant` schedule has no warm-up, as in transformers; use `constant_with_warmup`
    adapter `a`: warmup_steps 3 is used and warmup_ratio 0.1 is not
    adapter `b`: the learning rate is 0: the adapter learns nothing
    pipeline.microbatches is 5, but the largest batch has 4 rows: a batch has at most as many micro-batches as rows
    no adapter uses dataset `spare`
    ");
}

#[test]
fn overrides_of_defaults_that_do_nothing_are_refused() {
    let text = "model: m\ndatasets: {d: {path: p}}\nadapters:\n\
                - {name: a, train: {learning_rate: 1e-3}}\n\
                - {name: b, train: {learning_rate: 2e-3, max_steps: 5}}\n";
    for set in [
        "defaults.train.learning_rate=1e-4",
        "defaults.train={learning_rate: 1e-4, batch_size: 3}",
        "defaults={train: {learning_rate: 1e-4}}",
    ] {
        let error = load(text, &[set]).unwrap_err().to_string();
        let problem = "it has no effect, since every adapter sets `train.learning_rate`: set \
                       `adapters.NAME.train.learning_rate`";
        assert!(error.contains(problem), "{error}");
    }
    let config = load(text, &["defaults.train.max_steps=9"]).unwrap().config;
    assert_eq!(config.adapters[0].train.max_steps, Some(9));
    // A resolved configuration says everything of every adapter.
    let resolved = config.to_yaml().unwrap();
    assert!(load(&resolved, &["defaults.save.steps=9"]).is_err());
    assert!(load(&resolved, &["adapters.a.save.steps=9"]).is_ok());
    assert!(load(&resolved, &["seed=9"]).is_err());
    let held_out = resolved.replace("validation: 0.0", "validation: 0.5");
    assert!(load(&held_out, &["seed=9"]).is_ok(), "of which rows");
    let in_a_file = resolved.replace("validation: 0.0", "validation: held.jsonl");
    assert!(load(&in_a_file, &["seed=9"]).is_err());
    assert!(load(text, &["seed=9"]).is_ok());
    let error = load(&format!("{text}defaults: {{seed: 3}}\n"), &["seed=9"]).unwrap_err();
    let problem = "it has no effect, since `defaults` sets `seed`: set `defaults.seed`";
    assert!(error.to_string().contains(problem), "{error}");
    let unset = text.replace(
        "learning_rate: 1e-3",
        "learning_rate: null, max_steps: null",
    );
    assert!(load(&unset, &["defaults.train.learning_rate=1e-4"]).is_ok());
    assert!(load(&unset, &["defaults.train.max_steps=9"]).is_err());
    let grid = "sweep: [{name: s, grid: {lora.r: [2, 4]}}]\n";
    let alone = "defaults.train.learning_rate=1e-4";
    assert!(
        load(&format!("{text}{grid}"), &[alone]).is_ok(),
        "points of no base have it"
    );
}

#[test]
fn settings_without_effect_are_warned_of() {
    for (settings, warning) in [
        (
            "train: {loraplus_lr_ratio: 16, loraplus_lr_embedding: 1e-5}",
            Some("loraplus_lr_embedding 0.00001 is not used"),
        ),
        (
            "train: {loraplus_lr_ratio: 16, loraplus_lr_embedding: 1e-5}, lora: {target_modules: [embed_tokens]}",
            None,
        ),
        (
            "train: {loraplus_lr_ratio: 16, loraplus_lr_embedding: 1e-6}",
            None,
        ),
        (
            "lora: {lora_fa: true, target_modules: [embed_tokens]}",
            Some("lora_fa has no effect"),
        ),
        (
            "lora: {lora_fa: true, target_modules: [embed_tokens, lm_head]}",
            None,
        ),
        (
            "lora: {init_lora_weights: eva, eva_config: {tau: 1}}",
            Some("eva_config.tau 1 asks for"),
        ),
        (
            "lora: {init_lora_weights: eva, eva_config: {tau: 0.999}}",
            None,
        ),
        (
            "objective: {type: dpo, loss_type: [robust, sft]}",
            Some("loss_type robust with label_smoothing 0 is sigmoid"),
        ),
        (
            "objective: {type: dpo, loss_type: robust, label_smoothing: 0.1}",
            None,
        ),
    ] {
        let text = format!(
            "model: m\ndatasets: {{d: {{path: p}}}}\nadapters: [{{name: a, {settings}}}]\n"
        );
        let warnings = load(&text, &[]).unwrap().warnings;
        match warning {
            Some(expected) => assert!(
                warnings.len() == 1 && warnings[0].contains(expected),
                "{settings}: {warnings:?}"
            ),
            None => assert_eq!(warnings, Vec::<String>::new(), "{settings}"),
        }
    }
}

#[test]
fn an_objective_of_another_type_takes_the_keys_that_it_has() {
    let shared = "{type: dpo, beta: 0.3, loss_type: robust, label_smoothing: 0.2, reference: base, loss_weights: [2]}";
    let text = format!(
        "model: m\ndatasets: {{d: {{path: p}}}}\ndefaults: {{objective: {shared}}}\nadapters:\n  \
         - {{name: a, objective: OWN}}\n"
    );
    for (own, expected) in [
        ("{type: dpo}", shared),
        ("{type: kto}", "{type: kto, beta: 0.3, reference: base}"),
        ("{type: kto, beta: null}", "{type: kto, reference: base}"),
        ("{type: orpo}", "{type: orpo, beta: 0.3}"),
        (
            "{type: cpo}",
            "{type: cpo, beta: 0.3, label_smoothing: 0.2}",
        ),
        ("{type: sft}", "{type: sft}"),
    ] {
        let objective = |text: &str| {
            load(text, &[]).unwrap().config.adapters[0]
                .objective
                .clone()
        };
        let alone = text.replace(shared, "null").replace("OWN", expected);
        assert_eq!(
            objective(&text.replace("OWN", own)),
            objective(&alone),
            "{own}"
        );
    }
}

#[test]
fn the_folder_above_a_saved_adapter_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("run/adapters/x/last");
    fs::create_dir_all(&saved).unwrap();
    fs::write(saved.join("adapter_config.json"), "{}").unwrap();
    let path = directory.path().join("run.yaml");
    for (begins, is_refused) in [("run/adapters/x", true), ("run/adapters/x/last", false)] {
        let text = format!(
            "model: m\ndatasets: {{d: {{path: p}}}}\nadapters: [{{name: a, init_from: {begins}}}]\n"
        );
        fs::write(&path, text).unwrap();
        let refused = RunConfig::load(&path, &[])
            .err()
            .map(|error| error.to_string());
        assert_eq!(refused.is_some(), is_refused, "{refused:?}");
        assert!(refused.is_none_or(|told| told.contains("adapters/x/last`, or")));
    }
}

/// Those of keys that depend on other settings are null, and so left out, where they have no effect.
#[test]
fn the_resolved_form_has_the_defaults_in_use() {
    let text = "model: m\ndatasets: {d: {path: p}}\nadapters:\n  \
                - {name: plain}\n  \
                - {name: rest, lora: {init_lora_weights: eva}, train: {loraplus_lr_ratio: 16}, objective: {type: TYPE}}\n";
    for (objective, expected) in [
        (
            "dpo",
            "loss_type: [sigmoid], loss_weights: [1.0], beta: 0.1, label_smoothing: 0.0, reference: init, \
             precompute_ref_log_probs: false, disable_dropout: true",
        ),
        (
            "kto",
            "loss_type: [kto], beta: 0.1, reference: init, precompute_ref_log_probs: false, \
             disable_dropout: true, desirable_weight: 1.0, undesirable_weight: 1.0",
        ),
        ("orpo", "beta: 0.1, disable_dropout: true"),
        (
            "cpo",
            "loss_type: [sigmoid], beta: 0.1, label_smoothing: 0.0, disable_dropout: true, cpo_alpha: 1.0",
        ),
        (
            "simpo",
            "beta: 0.1, label_smoothing: 0.0, disable_dropout: true, cpo_alpha: 0.0, simpo_gamma: 0.5",
        ),
        ("cit", "lambda: 1.0, temperature: 2.0"),
    ] {
        let config = load(&text.replace("TYPE", objective), &[]).unwrap().config;
        let [plain, rest] = &config.adapters[..] else {
            panic!("two adapters");
        };
        assert_eq!(plain.objective, ObjectiveSettings::default());
        assert_eq!(
            (plain.lora.eva_config, plain.train.loraplus_lr_embedding),
            (None, None)
        );
        assert_eq!(rest.lora.eva_config, Some(EvaConfig::default()));
        assert_eq!(rest.train.loraplus_lr_embedding, Some(1e-6));
        let written = format!("{{type: {objective}, {expected}}}");
        let written: serde_json::Value = serde_saphyr::from_str(&written).unwrap();
        assert_eq!(serde_json::to_value(&rest.objective).unwrap(), written);
        let yaml = config.to_yaml().unwrap();
        let again =
            RunConfig::load_yaml(&yaml, Path::new("r.yaml"), &LoadOptions::default()).unwrap();
        assert_eq!((again.config, again.warnings), (config, Vec::new()));
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        (
            "a.yaml",
            "model: m\ndatasets: {d: {path: p}}\nadapters: [{name: a}]\n",
        ),
        (
            "a.json",
            r#"{"model": "m", "datasets": {"d": {"path": "p"}}, "adapters": [{"name": "a"}]}"#,
        ),
        (
            "a.toml",
            "model = 'm'\ndatasets.d.path = 'p'\n[[adapters]]\nname = 'a'\n",
        ),
    ] {
        let path = directory.path().join(name);
        fs::write(&path, format!("\u{feff}{text}")).unwrap();
        let loaded = RunConfig::load(&path, &[]);
        assert_eq!(loaded.unwrap().config.adapters[0].name, "a", "{name}");
    }
}

#[test]
fn columns_of_preferences_are_read_and_printed_again() {
    for columns in [
        r#"{"prompt":"a","chosen":"b","rejected":"c"}"#,
        r#"{"chosen":"b","rejected":"c"}"#,
        r#"{"instruction":"a","input":"i","chosen":"b","rejected":"c"}"#,
        r#"{"instruction":"a","chosen":"b","rejected":"c"}"#,
        r#"{"prompt":"a","completion":"b","label":"c"}"#,
        r#"{"instruction":"a","input":"i","output":"b","label":"c"}"#,
        r#"{"instruction":"a","output":"b","label":"c"}"#,
        r#"{"messages":"a","label":"c"}"#,
    ] {
        let read: ColumnMap = serde_json::from_str(columns).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), columns);
    }
    for columns in [
        r#"{"prompt":"a","chosen":"b"}"#,
        r#"{"prompt":"a","input":"i","chosen":"b","rejected":"c"}"#,
        r#"{"conversations":"a","label":"b"}"#,
    ] {
        let error = serde_json::from_str::<ColumnMap>(columns).unwrap_err();
        assert!(error.to_string().contains("of one format"), "{error}");
    }
}
