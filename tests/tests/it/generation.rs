//! Greedy decoding with a cache against the logits of the whole sequence.

use loraloom_config::DtypeChoice;
use loraloom_data::Tokenizer;
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
        let generator = Generator::load(
            &fixture.directory,
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
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
            chat: false,
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
