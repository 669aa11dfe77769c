//! Greedy decoding with a cache against the logits of the whole sequence.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use loraloom_config::DtypeChoice;
use loraloom_data::{Sample, Samples, Tokenizer};
use loraloom_inference::{
    BankSlot, BankSlots, Engine, EngineConfig, EngineRequest, Generation, Sampling,
};
use loraloom_model::{LlamaConfig, MergePart, PeftAdapter, merge};
use loraloom_tests::{Fixture, device};
use loraloom_trainer::{GenerateOptions, Generator, adapter_reader, inference_pipeline};

/// Every token is the argmax of logits that are computed from all tokens before it, for the base model
/// and PEFT's adapters beside each other.
#[test]
fn greedy_decoding_takes_the_argmax_over_the_grown_sequence() {
    for name in [
        "llama-gqa",
        "qwen3",
        "mistral-sliding",
        "granite",
        "olmo2",
        "smollm3",
        "gemma2",
        "gemma3",
        "phi3",
    ] {
        let fixture = Fixture::open(name);
        let jobs = fixture.jobs();
        let adapters: Vec<_> = jobs.iter().map(|job| job.directory.join("final")).collect();
        let config = LlamaConfig::from_directory(&fixture.directory).expect("a model");
        let generator = Generator::load(
            &fixture.directory,
            &config,
            DtypeChoice::Float32,
            &adapters,
            &device(),
        );
        let generator = generator.expect("a model and its adapters");
        let tokenizer = Tokenizer::load(&fixture.directory).expect("a tokenizer");
        let who: Vec<Option<usize>> = [None]
            .into_iter()
            .chain((0..adapters.len()).map(Some))
            .collect();
        let options = GenerateOptions {
            max_new_tokens: 24,
            ..GenerateOptions::default()
        };
        let mut different = 0;
        for prompt in ["Sort: maps, coats", "Where are the grey stones?\nAt"] {
            let found = generator.generate(prompt, &who, &options).expect("answers");
            for (who, found) in who.iter().zip(&found) {
                let mut ids = tokenizer.encode_prompt(prompt).expect("a prompt");
                let start = ids.len();
                for _ in 0..options.max_new_tokens {
                    let logits = generator.logits(&ids, *who).expect("logits");
                    let last = &logits[logits.len() - logits.len() / ids.len()..];
                    let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b]));
                    let best = best.expect("a vocabulary") as u32;
                    if tokenizer.eos_ids().contains(&best) {
                        break;
                    }
                    ids.push(best);
                }
                let expected = tokenizer.decode(&ids[start..], true).expect("text");
                assert_eq!(*found, expected, "{name} {who:?} {prompt}");
            }
            different += usize::from(found.iter().any(|text| *text != found[0]));
        }
        assert!(different > 0, "{name}: no adapter changes an answer");
    }
}

/// Logits, scores and answers with an adapter of embedding and output projection are those of the merged model, which
/// equals PEFT's.
#[test]
fn adapters_of_the_ends_of_a_model_compute_what_is_merged() {
    let fixture = Fixture::open("llama-gqa");
    let adapter = fixture.directory.join("jobs/ends-r8-dropout/final");
    let directory = tempfile::tempdir().expect("a directory");
    let merged = directory.path().join("merged");
    let part = MergePart {
        adapter: PeftAdapter::load(&adapter).expect("an adapter"),
        directory: adapter.clone(),
        weight: 1.0,
    };
    merge(&fixture.directory, &[part], None, &merged, &mut |_, _| ()).expect("merged");
    let load = |model: &Path, adapters: &[PathBuf]| {
        let config = LlamaConfig::from_directory(model).expect("a model");
        let generator = Generator::load(model, &config, DtypeChoice::Float32, adapters, &device());
        generator.expect("a model")
    };
    // The adapter is beside the base and another, in the second of three slots.
    let other = fixture.directory.join("jobs/qv-r4-betas/final");
    let with_adapter = load(&fixture.directory, &[other.clone(), adapter, other]);
    let merged = load(&merged, &[]);
    let ids = [1, 7, 30, 7, 200, 5, 60, 9];
    let found = with_adapter.logits(&ids, Some(1)).expect("logits");
    let expected = merged.logits(&ids, None).expect("logits");
    let base = largest_difference(&found, &with_adapter.logits(&ids, None).expect("logits"));
    assert!(base > 0.1, "the adapter changes little: {base}");
    let off = largest_difference(&found, &expected);
    assert!(off < 1e-4, "logits are off by {off}");

    let mut rows = Samples::default();
    let sample = Sample {
        ids: ids.to_vec(),
        is_target: (0..ids.len()).map(|position| position > 2).collect(),
        preferred: None,
    };
    rows.push(&sample).expect("kept");
    let score = |generator: &Generator, who: &[Option<usize>], index: usize| {
        let scores = generator.evaluate(&rows, who, 8, &mut |_| ());
        scores.expect("scores")[index].loss()
    };
    let found = score(&with_adapter, &[Some(0), None, Some(1)], 2);
    let expected = score(&merged, &[None], 0);
    assert!(
        (found - expected).abs() < 1e-5,
        "{found}, merged {expected}"
    );

    let options = GenerateOptions {
        max_new_tokens: 24,
        ..GenerateOptions::default()
    };
    let answer = |generator: &Generator, who: &[Option<usize>], index: usize| {
        let answers = generator.generate("Sort: maps, coats", who, &options);
        answers.expect("answers").swap_remove(index)
    };
    let found = answer(&with_adapter, &[None, Some(0), Some(1)], 2);
    assert_eq!(found, answer(&merged, &[None], 0));
    assert_ne!(found, answer(&with_adapter, &[None], 0));
}

fn largest_difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// An answer of `generated.json`.
#[derive(Debug, serde::Deserialize)]
struct Generated {
    adapter: Option<String>,
    prompt: Vec<u32>,
    answer: Vec<u32>,
    margin: f64,
}

/// Of each model all adapters and the base, with prompts of two lengths, at once: PEFT and transformers find the same
/// tokens.
#[test]
fn greedy_answers_are_those_of_peft() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/generated.json");
    let text = std::fs::read_to_string(path).expect("frozen answers");
    let all: BTreeMap<String, Vec<Generated>> = serde_json::from_str(&text).expect("JSON");
    assert!(all.len() >= 12, "{} models", all.len());
    for (name, answers) in &all {
        let fixture = Fixture::open(name);
        let model = &fixture.directory;
        let config = LlamaConfig::from_directory(model).expect("a model");
        // transformers goes on beyond the context.
        let fits = |answer: &&Generated| {
            answer.prompt.len() + answer.answer.len() <= config.max_position_embeddings
        };
        let answers: Vec<&Generated> = answers.iter().filter(fits).collect();
        let pipeline = inference_pipeline(model, &config, DtypeChoice::Float32, &device());
        let (mut pipeline, read) = (
            pipeline.expect("a pipeline"),
            adapter_reader(model, &config),
        );
        let place = |slot| BankSlot { group: 0, slot };
        let mut generations = BTreeMap::from([(None, Generation::BASE)]);
        let mut places = BankSlots::from([(Generation::BASE, place(None))]);
        for adapter in answers.iter().filter_map(|answer| answer.adapter.as_ref()) {
            if generations.contains_key(&Some(adapter)) {
                continue;
            }
            let parts = read(&model.join("jobs").join(adapter).join("final"));
            let slot = pipeline
                .push(0, parts.expect("an adapter"))
                .expect("a slot");
            let generation = Generation(slot as u64 + 1);
            generations.insert(Some(adapter), generation);
            places.insert(generation, place(Some(slot)));
        }
        let config = EngineConfig {
            blocks: 256,
            batch_tokens: 64,
            max_sequences: 64,
        };
        let mut engine = Engine::new(&pipeline, config);
        let tokenizer = Tokenizer::load(model).expect("a tokenizer");
        let mut found = BTreeMap::new();
        for answer in &answers {
            let request = EngineRequest {
                generation: generations[&answer.adapter.as_ref()],
                prompt: answer.prompt.clone(),
                sampling: Sampling::default(),
                max_tokens: 24,
                stop: tokenizer.eos_ids().to_vec(),
                top_log_probs: 0,
                tenant: String::new(),
                weight: 1.0,
            };
            found.insert(engine.submit(request).expect("a request"), Vec::new());
        }
        while engine.requests() > 0 {
            for token in engine.step(&pipeline, &places).expect("a step") {
                found.entry(token.request).or_default().push(token.id);
            }
        }
        for (answer, found) in answers.into_iter().zip(found.values()) {
            assert!(answer.margin > 1e-5, "{name}: a tie");
            let (adapter, length) = (&answer.adapter, answer.prompt.len());
            assert_eq!(*found, answer.answer, "{name} {adapter:?} {length} tokens");
        }
    }
}
