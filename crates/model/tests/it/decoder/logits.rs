//! Logits of every model in `tests/fixtures`, frozen from transformers.

use std::fs;

use burn::tensor::{DType, Tensor, TensorData};
use loraloom_model::{
    BLOCK_TOKENS, Backbone, BlockTable, BlockTables, LayerCache, LayerLora, LlamaConfig,
    RopeScaling, RopeTable, RotaryTables, SequenceBatch, Sequences,
};
use safetensors::SafeTensors;

use crate::decoder::support::{backbone, config, device, fixture, host, whole};

const MODELS: [&str; 14] = [
    "gemma2",
    "gemma3",
    "granite",
    "llama-gqa",
    "llama-rope-dynamic",
    "llama-rope-linear",
    "llama-rope-yarn",
    "llama-tied-rope-llama3",
    "mistral-sliding",
    "olmo2",
    "phi3",
    "qwen2-sharded",
    "qwen3",
    "smollm3",
];

/// Token ids and transformers' logits of one sequence.
struct Golden {
    ids: Vec<u32>,
    logits: Vec<f32>,
}

/// The short and the long sequence.
fn golden(model: &str) -> [Golden; 2] {
    let bytes = fs::read(fixture(model).join("logits.safetensors")).expect("a file");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    ["short", "long"].map(|kind| {
        let data = |name: &str| {
            let tensor = tensors
                .tensor(&format!("{name}.{kind}"))
                .expect("in the file");
            tensor.data().to_vec()
        };
        let ids = data("ids");
        let ids = ids.as_chunks().0.iter().map(|id| i64::from_le_bytes(*id));
        let ids = ids.map(|id| u32::try_from(id).expect("an id")).collect();
        let logits = data("logits");
        let logits = logits
            .as_chunks()
            .0
            .iter()
            .map(|value| f32::from_le_bytes(*value));
        Golden {
            ids,
            logits: logits.collect(),
        }
    })
}

/// Off by at most 1e-5, absolute and relative. Measured on the CPU: 2.4e-6, and 3.7e-6 with a cache.
#[track_caller]
fn assert_golden(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(
            error <= 1e-5 * (1.0 + expected.abs()),
            "{what}[{index}] is {found}, transformers has {expected}"
        );
    }
}

/// Logits of whole sequences, one after another.
pub(crate) fn forward(parts: &[Backbone], config: &LlamaConfig, sequences: &[&[u32]]) -> Vec<f32> {
    let lengths: Vec<_> = sequences.iter().map(|ids| ids.len()).collect();
    let layout = Sequences::from_lengths(lengths.iter().copied());
    let batch = SequenceBatch::new(&RotaryTables::new(config, &device()), layout, &lengths);
    let mut x = parts[0]
        .embed(&sequences.concat(), None)
        .expect("an embedding");
    for layer in parts.iter().flat_map(Backbone::layers) {
        x = layer
            .forward(x, &batch, &LayerLora::default())
            .expect("no adapters");
    }
    let head = parts.iter().find_map(Backbone::head).expect("a head");
    host(head.logits(x, None).expect("logits"))
}

/// Logits `[sequences][tokens, vocabulary]` of sequences of one length, fed in steps of so many
/// tokens through the cache. The sequences' blocks take turns.
fn generate(
    model: &Backbone,
    config: &LlamaConfig,
    sequences: &[&[u32]],
    steps: &[usize],
) -> Vec<Vec<f32>> {
    let count = sequences.len();
    let needed = steps.iter().sum::<usize>().div_ceil(BLOCK_TOKENS);
    let cache = || LayerCache::new(count * needed, config, DType::F32, &device());
    let mut caches: Vec<_> = model.layers().iter().map(|_| cache()).collect();
    let mut logits = vec![Vec::new(); sequences.len()];
    let mut past = 0;
    let rotary = RotaryTables::new(config, &device());
    for &tokens in steps {
        let layout = Sequences::from_lengths(vec![tokens; count]);
        let tables = (0..count).map(|sequence| BlockTable {
            past,
            blocks: (0..needed)
                .map(|block| (block * count + sequence) as u32)
                .collect(),
        });
        let tables = BlockTables::new(tables.collect());
        let lengths = vec![past + tokens; count];
        let batch = SequenceBatch::following(&rotary, layout, &tables, &lengths);
        let ids = sequences.iter().flat_map(|ids| &ids[past..past + tokens]);
        let mut x = model
            .embed(&ids.copied().collect::<Vec<_>>(), None)
            .expect("an embedding");
        for (layer, cache) in model.layers().iter().zip(&mut caches) {
            x = layer
                .forward_cached(x, &batch, &LayerLora::default(), cache, &tables)
                .expect("no adapters");
        }
        let found = host(
            model
                .head()
                .expect("a head")
                .logits(x, None)
                .expect("logits"),
        );
        let per_sequence = tokens * config.vocab_size;
        for (logits, found) in logits.iter_mut().zip(found.chunks(per_sequence)) {
            logits.extend_from_slice(found);
        }
        past += tokens;
    }
    logits
}

/// Beyond its original length a dynamically scaled model rotates a sequence's every key anew when
/// it grows; a cache keeps the keys as they were, in transformers too.
fn depends_on_length(config: &LlamaConfig, length: usize) -> bool {
    matches!(
        config.rope.scaling,
        RopeScaling::Dynamic { original_max_position_embeddings, .. }
            | RopeScaling::LongRope { original_max_position_embeddings, .. }
            if length > original_max_position_embeddings
    )
}

#[test]
fn every_model_directory_is_tested() {
    let entries = fs::read_dir(fixture("")).expect("fixtures");
    let entries = entries.map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> = entries
        .filter(|path| path.join("logits.safetensors").exists())
        .map(|path| {
            path.file_name()
                .expect("a name")
                .to_str()
                .expect("UTF-8")
                .to_owned()
        })
        .collect();
    found.sort();
    assert_eq!(found, MODELS);
}

#[test]
fn each_sequence_alone() {
    for model in MODELS {
        let (config, parts) = (config(model), [whole(model)]);
        for golden in golden(model) {
            let what = format!("{model}, {} tokens", golden.ids.len());
            let found = forward(&parts, &config, &[&golden.ids]);
            assert_golden(&what, &found, &golden.logits);
        }
    }
}

#[test]
fn both_sequences_in_one_batch() {
    for model in MODELS {
        let (config, parts) = (config(model), [whole(model)]);
        let [short, long] = golden(model);
        let found = forward(&parts, &config, &[&short.ids, &long.ids, &short.ids]);
        let expected = [&*short.logits, &long.logits, &short.logits].concat();
        assert_golden(model, &found, &expected);
    }
}

#[test]
fn token_by_token() {
    for model in MODELS {
        let (config, backbone) = (config(model), whole(model));
        for golden in golden(model) {
            if depends_on_length(&config, golden.ids.len()) {
                continue;
            }
            let steps = vec![1; golden.ids.len()];
            let found = generate(&backbone, &config, &[&golden.ids], &steps).remove(0);
            assert_golden(&format!("{model}, cached"), &found, &golden.logits);
        }
    }
}

/// A prompt, some tokens at once, the rest one by one, of two sequences at a time.
#[test]
fn several_sequences_through_one_cache() {
    for model in MODELS {
        let (config, backbone) = (config(model), whole(model));
        let [short, long] = golden(model);
        let length = short.ids.len();
        if depends_on_length(&config, long.ids.len()) {
            continue;
        }
        let mut steps = vec![length / 2, 3];
        steps.extend(vec![1; length - length / 2 - 3]);
        let sequences = [&*short.ids, &long.ids[..length]];
        let found = generate(&backbone, &config, &sequences, &steps);
        assert_golden(&format!("{model}, short"), &found[0], &short.logits);
        let expected = &long.logits[..length * config.vocab_size];
        assert_golden(&format!("{model}, long"), &found[1], expected);
    }
}

#[test]
fn a_backbone_in_parts_is_the_whole() {
    for model in ["llama-gqa", "llama-tied-rope-llama3", "qwen2-sharded"] {
        let config = config(model);
        let layers = config.num_hidden_layers;
        let parts = [backbone(model, 0..1), backbone(model, 1..layers)];
        assert!(parts[0].head().is_none() && parts[1].embed(&[0], None).is_none());
        let [short, _] = golden(model);
        let found = forward(&parts, &config, &[&short.ids]);
        let whole = forward(&[whole(model)], &config, &[&short.ids]);
        assert_eq!(found, whole);
        assert_golden(model, &found, &short.logits);
    }
}

/// Whatever lengths a stage has seen before, a token's row is that of its position in the table of its
/// own sequence.
#[test]
fn rotary_rows_are_those_of_the_tokens_positions() {
    for model in ["llama-gqa", "llama-rope-dynamic", "gemma3", "phi3"] {
        let config = config(model);
        let local = config.local_rope.as_ref().unwrap_or(&config.rope);
        let half = config.rope.rotary_dim / 2;
        let rotary = RotaryTables::new(&config, &device());
        for (lengths, rope_lengths) in [
            (&[3][..], &[3][..]),
            (&[5, 40, 2], &[5, 40, 40]),
            (&[7, 50, 33, 9], &[7, 50, 50, 33]),
            (&[100, 3], &[100, 3]),
            (&[5, 40], &[5, 40]),
        ] {
            let layout = Sequences::from_lengths(lengths.iter().copied());
            let batch = SequenceBatch::new(&rotary, layout, rope_lengths);
            let (mut cos, mut sin, mut local_cos) = (Vec::new(), Vec::new(), Vec::new());
            for (&length, &rope_length) in lengths.iter().zip(rope_lengths) {
                let table = RopeTable::new(&config.rope, rope_length.max(length));
                cos.extend_from_slice(&table.cos[..length * half]);
                sin.extend_from_slice(&table.sin[..length * half]);
                let table = RopeTable::new(local, rope_length.max(length));
                local_cos.extend_from_slice(&table.cos[..length * half]);
            }
            assert_eq!(host(batch.global.cos), cos, "{model}: {lengths:?}");
            assert_eq!(host(batch.global.sin), sin, "{model}: {lengths:?}");
            assert_eq!(batch.local.is_some(), model == "gemma3");
            if let Some(rows) = batch.local {
                assert_eq!(host(rows.cos), local_cos, "{model}: {lengths:?}");
            }
        }
        let layout = Sequences::from_lengths([2, 2]);
        let past = |past| BlockTable {
            past,
            blocks: Vec::new(),
        };
        let tables = BlockTables::new(vec![past(20), past(20)]);
        let next = SequenceBatch::following(&rotary, layout, &tables, &[22, 22]);
        let table = RopeTable::new(&config.rope, 22);
        let rows = &table.cos[20 * half..22 * half];
        assert_eq!(host(next.global.cos), [rows, rows].concat(), "{model}");
    }
}

/// Dynamic scaling must follow the length a task's batch has, not that of its neighbours.
#[test]
fn dynamic_scaling_takes_the_length_it_is_given() {
    let config = config("llama-rope-dynamic");
    let rotary = RotaryTables::new(&config, &device());
    let tables = |own: usize| {
        let layout = Sequences::from_lengths([5, 50]);
        let batch = SequenceBatch::new(&rotary, layout, &[own, 50]);
        let half = config.head_dim / 2;
        let part = |table: Tensor<2>| host(table.slice([0..5, 0..half]));
        (part(batch.global.cos), part(batch.global.sin))
    };
    assert_eq!(tables(5), tables(20));
    assert_eq!(tables(5), tables(32));
    assert_ne!(tables(5), tables(50));
}

#[test]
fn embeddings_are_the_rows_of_the_table() {
    let backbone = whole("llama-gqa");
    let checkpoint = loraloom_model::Checkpoint::open(&fixture("llama-gqa")).expect("a checkpoint");
    let table = checkpoint
        .tensor("model.embed_tokens.weight")
        .expect("there");
    let shape = [table.shape[0], table.shape[1]];
    let table = Tensor::<2>::from_data(TensorData::new(table.to_f32(), shape), &device());
    let found = backbone.embed(&[3, 0, 383, 3], None).expect("an embedding");
    let rows = [3, 0, 383, 3].map(|row| table.clone().slice([row..row + 1, 0..shape[1]]));
    assert_eq!(host(found), host(Tensor::cat(rows.to_vec(), 0)));
    let none = backbone.embed(&[], None).expect("an embedding");
    assert_eq!(none.dims(), [0, shape[1]]);
}
