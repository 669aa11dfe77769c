//! Greedy decoding with a cache against the logits of the whole sequence.

use std::path::{Path, PathBuf};

use loraloom_config::DtypeChoice;
use loraloom_data::{Sample, Samples, Tokenizer};
use loraloom_model::{LlamaConfig, MergePart, PeftAdapter, merge};
use loraloom_tests::{Fixture, device};
use loraloom_trainer::{GenerateOptions, Generator};

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
