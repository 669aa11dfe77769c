//! `check`: what it finds, and with which exit code.

use std::{fs, io::Write};

use loraloom_model::{LlamaConfig, parameter_shapes};
use serde_json::{Map, json};

use crate::support::Workspace;

#[test]
fn a_good_configuration_passes() {
    let here = Workspace::new();
    let run = here.run(&["check", "loraloom.yaml"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let passes = |line: &str| line.starts_with("PASS  ");
    assert!(run.stdout.lines().all(passes), "{}", run.stdout);
    for name in [
        "config:",
        "model:",
        "tokenizer:",
        "dataset shout:",
        "adapter shout-r4:",
        "plan: adapters that train first: 6",
        "output_dir:",
    ] {
        assert!(run.stdout.contains(name), "{name} in {}", run.stdout);
    }
    let json = here.run(&["check", "loraloom.yaml", "--json"]).json();
    assert_eq!(json["ok"], true);
    assert_eq!(
        json["checks"].as_array().unwrap().len(),
        run.stdout.lines().count()
    );
    let files = fs::read_dir(here.path(".")).unwrap().count();
    assert_eq!(files, 3, "check left something behind");
}

/// The lines of `check` that do not pass, for one thing that is wrong.
fn findings(code: i32, line: &[&str], spoil: impl FnOnce(&Workspace)) -> String {
    let here = Workspace::new();
    spoil(&here);
    let arguments = [&["check", "loraloom.yaml"], line].concat();
    let run = here.run(&arguments);
    assert_eq!(run.code, code, "{}", run.all());
    let mut shown = Vec::new();
    let mut keep = false;
    for line in run.stdout.lines() {
        keep = !line.starts_with("PASS") && (keep || !line.starts_with(' '));
        if keep {
            shown.push(line);
        }
    }
    let json = here.run(&[&arguments[..], &["--json"]].concat());
    assert_eq!(json.code, code);
    assert_eq!(json.json()["ok"], code == 0);
    shown.join("\n") + "\n"
}

#[test]
fn what_is_wrong_is_said_with_place_and_hint() {
    let set = |pair: &'static str| ["--set", pair];
    let nothing = |_: &Workspace| {};
    let mut all = String::new();
    all += &findings(2, &set("adapters.shout-r4.lora.rank=3"), nothing);
    all += &findings(3, &set("model=nowhere"), nothing);
    all += &findings(3, &[], |here| {
        let path = here.path("tiny-llama/model.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(path, &bytes[..bytes.len() - 1000]).unwrap();
    });
    all += &findings(3, &[], |here| {
        fs::remove_file(here.path("tiny-llama/tokenizer.json")).unwrap();
    });
    all += &findings(3, &[], |here| {
        here.write(
            "data/shout.jsonl",
            "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \n",
        );
    });
    all += &findings(3, &[], |here| {
        here.write(
            "data/shout.jsonl",
            "{\"prompt\": \"a\", \"completion\": 7}\n",
        );
    });
    all += &findings(3, &[], |here| {
        fs::remove_file(here.path("data/shout.jsonl")).unwrap();
    });
    all += &findings(3, &set("datasets.shout.template='{{ prompt'"), nothing);
    all += &findings(3, &set("adapters.shout-r4.init_from=nowhere"), nothing);
    all += &findings(2, &set("output_dir=loraloom.yaml/below"), nothing);
    all += &findings(2, &set("output_dir=used"), |here| {
        here.write("used/events.jsonl", "{\"event\":\"step\"}\n");
    });
    all += &findings(0, &set("adapters.shout-r4.train.max_seq_len=16"), nothing);
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\d+ of \d+ rows", "[ROWS]");
    settings.bind(|| insta::assert_snapshot!(all));
}

/// A model directory with one key of its config.json changed.
fn set_in_model(here: &Workspace, key: &str, value: impl Into<serde_json::Value>) {
    let path = here.path("tiny-llama/config.json");
    let mut config: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config[key] = value.into();
    fs::write(path, config.to_string()).unwrap();
}

/// An adapter without any gradient is refused before training; the message names the setting.
#[test]
fn an_adapter_that_cannot_learn_is_refused() {
    let refused = |here: &Workspace, set: &str, words: &[&str]| {
        here.write("text.jsonl", "{\"text\": \"some words to train on\"}\n");
        here.write(
            "text.yaml",
            "model: tiny-llama\ndevice: cpu\noutput_dir: runs/text\n\
             datasets: {text: {path: text.jsonl}}\n\
             defaults: {lora: {target_modules: all-linear}, train: {max_steps: 2, batch_size: 1}}\n\
             adapters: [{name: a, dataset: text}]\n",
        );
        for command in ["check", "plan", "train"] {
            let run = here.run(&[command, "text.yaml", "--set", set]);
            assert_ne!(run.code, 0, "{command}: {}", run.all());
            for word in words {
                assert!(run.all().contains(word), "{command}: {}", run.all());
            }
        }
    };
    let here = Workspace::new();
    let words = ["no gradient reaches `q_proj`", "`train.max_seq_len` 2"];
    refused(&here, "defaults.train.max_seq_len=2", &words);

    set_in_model(&here, "architectures", vec!["MistralForCausalLM"]);
    set_in_model(&here, "model_type", "mistral");
    set_in_model(&here, "sliding_window", 1);
    let words = ["no gradient reaches `q_proj`", "`sliding_window` is 1"];
    refused(&here, "seed=1", &words);
    let k = "defaults.lora.target_modules=[k_proj]";
    refused(&here, k, &["no gradient reaches `k_proj`"]);
    let v = "defaults.lora.target_modules=[v_proj]";
    let run = here.run(&["check", "text.yaml", "--set", v]);
    assert_eq!(run.code, 0, "{}", run.all());

    let here = Workspace::new();
    let adapter = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../model/tests/fixtures/adapters/plain"
    );
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::create_dir_all(here.path("begin")).unwrap();
        fs::copy(format!("{adapter}/{name}"), here.path("begin").join(name)).unwrap();
    }
    let path = here.path("begin/adapter_config.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (key, value) in [
        ("lora_alpha", serde_json::json!(0)),
        ("alpha_pattern", serde_json::json!({"q_proj": -2})),
    ] {
        config[key] = value;
        fs::write(&path, config.to_string()).unwrap();
        let words = ["begin/adapter_config.json: `lora_alpha` is", "above 0"];
        refused(&here, "adapters.a.init_from=begin", &words);
        config[key] = serde_json::json!(8);
    }
    let eva = "defaults.lora.init_lora_weights=eva";
    let run = here.run(&["check", "text.yaml", "--set", eva]);
    let words = "has 32 tokens to predict, one for each component: at most it has";
    assert!(run.code != 0 && run.all().contains(words), "{}", run.all());
}

#[test]
fn check_plan_and_train_warn_of_the_same() {
    let here = Workspace::new();
    set_in_model(&here, "attention_dropout", 0.1);
    let row = |letter: &str, words: usize| {
        let prompt = "word ".repeat(words);
        format!(
            "{{\"prompt\": \"{prompt}\", \"completion\": \"{letter}\", \"all\": \"{prompt}\"}}\n"
        )
    };
    here.write("long.jsonl", row("A", 600) + &row("B", 5) + &row("", 5));
    here.write(
        "roles.jsonl",
        "{\"messages\": [{\"role\": \"human\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n\
         {\"messages\": [{\"role\": \"human\", \"content\": \"a\"}, {\"role\": \"gpt\", \"content\": \"b\"}]}\n",
    );
    here.write(
        "odd.yaml",
        "model: tiny-llama\ndevice: cpu\noutput_dir: runs/odd\ndatasets:\n  \
           long: {path: [long.jsonl, ./long.jsonl], validation: long.jsonl}\n  \
           same: {path: long.jsonl, columns: {prompt: all, completion: all}}\n  \
           roles: {path: roles.jsonl}\n\
         defaults: {train: {max_steps: 1, batch_size: 2, max_seq_len: 64}}\nadapters:\n\
         - {name: short, dataset: long}\n\
         - {name: beyond, dataset: same, train: {max_seq_len: 700}}\n\
         - {name: many, dataset: long, train: {batch_size: 4, gradient_accumulation_steps: 1000}}\n\
         - {name: chat, dataset: roles}\n\
         - {name: warm, dataset: long, train: {max_steps: null, num_epochs: 3, warmup_steps: 1000}}\n\
         - {name: patient, dataset: long, eval: {patience: 3}, train: {max_steps: 3}}\n\
         sweep:\n\
         - {name: ranks, base: short, grid: {lora.r: [2, 4]}, early_stopping: {grace_period: 20}}\n",
    );
    let check = here.run(&["check", "odd.yaml", "--json"]);
    assert_eq!(check.code, 0, "{}", check.all());
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let findings = check.json()["checks"].as_array().unwrap().clone();
    let odd = findings
        .iter()
        .filter(|finding| finding["status"] == "warn");
    let mut said: Vec<String> = odd
        .map(|finding| {
            let hint = &finding["hint"];
            let hint = hint.as_str().map(|hint| format!("; {hint}"));
            let (name, message) = (text(&finding["name"]), text(&finding["message"]));
            format!("{name}: {message}{}", hint.unwrap_or_default())
        })
        .collect();
    let train = here.run(&["train", "odd.yaml", "--no-progress"]);
    assert_eq!(train.code, 0, "{}", train.all());
    said.sort_unstable();
    for run in [here.run(&["plan", "odd.yaml"]), train] {
        let lines = run.stderr.lines();
        let mut warned: Vec<_> = lines
            .filter_map(|line| line.strip_prefix("warning: "))
            .collect();
        warned.sort_unstable();
        assert_eq!(said, warned);
    }
    insta::assert_snapshot!(said.join("\n"));
}

/// It took 180 times its size, and a minute.
#[cfg(target_os = "linux")]
#[test]
fn a_long_row_takes_three_times_its_size() {
    const SIZE: usize = 20_000_000;
    // KiB. With one short row `check` takes less than the first term.
    let limit = 54_000 + 3 * SIZE / 1024;
    let here = Workspace::new();
    let text = "many words ".repeat(SIZE / 11);
    here.write("text.jsonl", format!("{{\"text\": \"{text}\"}}\n"));
    here.write("text.json", format!("[{{\"text\": \"{text}\"}}]\n"));
    here.write(
        "pair.jsonl",
        format!("{{\"prompt\": \"a\", \"completion\": \"{text}\"}}\n"),
    );
    here.write("text.csv", format!("text,id\n{text},1\n"));
    for name in ["text.jsonl", "text.json", "pair.jsonl", "text.csv"] {
        let dataset = format!("datasets.shout.path={name}");
        let limited = format!("ulimit -v {limit}; exec \"$@\"");
        let mut check = here.command_under(
            &["bash", "-c", &limited, "bash"],
            &[
                "check",
                "loraloom.yaml",
                "--set",
                &dataset,
                "--set",
                "datasets.shout.validation=0",
            ],
        );
        // Each thread that allocates reserves address space.
        check
            .env("MALLOC_ARENA_MAX", "1")
            .env("RAYON_NUM_THREADS", "1");
        let output = check.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{name}: {said} {output:?}");
        assert!(
            said.contains("1 of 1 rows are cut and lose more than 99 %"),
            "{said}"
        );
    }
}

#[test]
fn a_tokenizer_of_another_model_is_found() {
    let here = Workspace::new();
    let path = here.path("tiny-llama/tokenizer.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut extra = added[0].clone();
    extra["id"] = 9_999.into();
    extra["content"] = "List:".into();
    added.push(extra);
    fs::write(path, tokenizer.to_string()).unwrap();
    let run = here.run(&["check", "loraloom.yaml"]);
    assert_eq!(run.code, 3, "{}", run.all());
    assert!(
        run.stdout.contains("is outside the model's"),
        "{}",
        run.stdout
    );

    // Before training, though it would first be met at an evaluation.
    let row = |text: &str| format!("{{\"text\": \"{text}\"}}\n");
    here.write("rows.jsonl", row("a"));
    here.write("held.jsonl", row("List: a"));
    here.write(
        "held.yaml",
        "model: tiny-llama\noutput_dir: held\ndatasets: {d: {path: rows.jsonl, validation: held.jsonl}}\n\
         adapters: [{name: a, dataset: d, train: {max_steps: 1, batch_size: 1}, eval: {steps: 100}}]",
    );
    for command in ["check", "train"] {
        let run = here.run(&[command, "held.yaml"]);
        assert_eq!(run.code, 3, "{}", run.all());
        assert!(run.all().contains("1280"), "{}", run.all());
    }
    assert!(!here.path("held/events.jsonl").exists());
}

/// Advice is about models of real sizes: this one's weights are a hole in a file.
#[test]
fn settings_that_learn_less_are_told() {
    let here = Workspace::new();
    for (key, value) in [
        ("hidden_size", 512),
        ("head_dim", 64),
        ("num_hidden_layers", 1),
    ] {
        set_in_model(&here, key, value);
    }
    let config = LlamaConfig::from_directory(&here.path("tiny-llama")).unwrap();
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in parameter_shapes(&config) {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        let tensor = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
        header.insert(name, tensor);
    }
    let header = json!(header).to_string();
    let mut file = fs::File::create(here.path("tiny-llama/model.safetensors")).unwrap();
    file.write_all(&header.len().to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
    let told = |set: &str| {
        let run = here.run(&["check", "loraloom.yaml", "--set", set]);
        assert_eq!(run.code, 0, "{}", run.all());
        run.stdout.matches("attention alone").count()
    };
    let all = told("seed=1");
    assert_eq!(
        told("adapters.shout-r4.lora.target_modules=[q_proj]"),
        all + 1
    );
}
