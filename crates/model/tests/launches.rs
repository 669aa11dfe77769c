//! Kernel launches of a layer do not depend on what is in a batch.
//!
//! The count is the process's, hence a binary of its own. The CPU has no launches to count:
//! `LORALOOM_TEST_DEVICE=wgpu` (or `cuda`) and `--include-ignored` run this test on a GPU.
#![cfg(feature = "cubecl")]

use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use batchlora::{AdapterState, LaunchCount, LoraPair, LoraSpec, Segment, Segments, seed_gradient};
use burn::tensor::{DType, Device, FloatDType, Tensor};
#[cfg(feature = "cuda")]
use burn_cubecl::cubecl::dry_run::DryRun;

use loraloom_model::{
    Backbone, BlockTable, BlockTables, Checkpoint, DecoderLayer, LayerAdapter, LayerBanks,
    LayerCache, LlamaConfig, Projection, RotaryTables, SequenceBatch, Sequences,
};

const MODEL: &str = "../../tests/fixtures/llama-gqa";
const LENGTH: usize = 9;

fn device() -> Device {
    match std::env::var("LORALOOM_TEST_DEVICE").as_deref() {
        #[cfg(feature = "wgpu")]
        Ok("wgpu") => Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "cuda")]
        Ok("cuda") => Device::cuda(0),
        other => panic!("LORALOOM_TEST_DEVICE is {other:?}, which is no GPU of this build"),
    }
}

/// One measurement at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn adapter(config: &LlamaConfig, rank: usize, device: &Device) -> LayerAdapter {
    Projection::ALL.map(|projection| {
        let mut linears = config.linears().into_iter();
        let shape = linears.find(|linear| linear.projection == projection)?;
        let part = |width| Tensor::<2>::full([rank, width], 0.01, device);
        let weights = LoraPair {
            a: part(shape.d_in),
            b: part(shape.d_out),
            magnitude: None,
        };
        let state = AdapterState::new(LoraSpec::new(rank, 2.0), weights);
        Some(state.expect("a valid adapter"))
    })
}

/// Launches of forward and backward of a layer over sequences of so many adapters, and dX.
fn pass(
    config: &LlamaConfig,
    layer: &DecoderLayer,
    dtype: FloatDType,
    lengths: &[usize],
    adapters: usize,
) -> (u64, Tensor<2>) {
    let device = &device();
    let mut banks = LayerBanks::new(config, 1, device);
    for slot in 0..adapters {
        let adapter = adapter(config, 1 + slot % 4, device);
        banks.push(adapter).expect("fits");
    }
    let layout = Sequences::from_lengths(lengths.iter().copied());
    let rows = layout.rows();
    let segments = (0..adapters).map(|slot| Segment {
        rows: slot * rows / adapters..(slot + 1) * rows / adapters,
        slot,
    });
    let segments = Segments::new(rows, segments.collect()).expect("in order");
    let batch = SequenceBatch::new(&RotaryTables::new(config, device), layout, lengths);
    let autodiff = device.clone().autodiff();
    let lora = banks.attach(&segments, None).expect("slots exist");
    let lora = lora.require_grad();
    let full = |value| {
        Tensor::<2>::full(
            [rows, config.d_model],
            value,
            (&autodiff, DType::from(dtype)),
        )
    };
    let x = full(0.1).require_grad();
    let seed = full(0.1);
    // Tables are uploaded in the first forward.
    let y = layer.forward(x.clone(), &batch, &lora).expect("fits");
    drop(y);
    autodiff.sync().expect("a device at rest");
    let count = LaunchCount::start();
    let y = layer.forward(x.clone(), &batch, &lora).expect("fits");
    let mut gradients = seed_gradient(y, seed).backward();
    let dx = x.grad(&gradients).expect("a gradient");
    let _of_adapters = lora.take_gradients(&mut gradients);
    autodiff.sync().expect("a device at rest");
    (count.launches(), dx)
}

#[test]
#[ignore = "needs a GPU: LORALOOM_TEST_DEVICE"]
fn a_layer_launches_as_much_for_many_sequences_and_adapters_as_for_one() {
    let _alone = alone();
    let device = device();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(MODEL);
    let config = LlamaConfig::from_directory(&directory).expect("a configuration");
    let checkpoint = Checkpoint::open(&directory).expect("a checkpoint");
    let backbone = Backbone::load(&checkpoint, &config, 1..2, FloatDType::F32, &device);
    let backbone = backbone.expect("a layer");
    let layer = &backbone.layers()[0];
    let launches = |sequences, adapters| {
        let run = || {
            pass(
                &config,
                layer,
                FloatDType::F32,
                &vec![LENGTH; sequences],
                adapters,
            )
        };
        // The first compiles and tunes.
        run();
        let (launches, dx) = run();
        let dx = loraloom_model::to_host(dx).expect("a value");
        assert!(dx.iter().all(|value| value.is_finite()));
        launches
    };
    let one = launches(1, 1);
    println!("{one} launches of one layer, forward and backward");
    for (sequences, adapters) in [(8, 1), (64, 1), (8, 8), (64, 8), (64, 64)] {
        assert_eq!(
            launches(sequences, adapters),
            one,
            "{sequences} sequences, {adapters} adapters"
        );
    }
}

/// Launches of a layer that decodes one token of each of 64 sequences, with this number of adapters.
fn decode(config: &LlamaConfig, layer: &DecoderLayer, adapters: usize) -> u64 {
    const SEQUENCES: usize = 64;
    let device = &device();
    let mut banks = LayerBanks::new(config, 1, device);
    for slot in 0..adapters {
        let adapter = adapter(config, 1 + slot % 4, device);
        banks.push(adapter).expect("fits");
    }
    let segments = (0..adapters).map(|slot| Segment {
        rows: slot * SEQUENCES / adapters..(slot + 1) * SEQUENCES / adapters,
        slot,
    });
    let segments = Segments::new(SEQUENCES, segments.collect()).expect("in order");
    let lora = banks.attach(&segments, None).expect("slots exist");
    let mut cache = LayerCache::new(2 * SEQUENCES, config, DType::F32, device);
    let rotary = RotaryTables::new(config, device);
    // Tables are uploaded in the first layer of a step.
    let mut launches = 0;
    for past in [20, 21] {
        let tables = (0..SEQUENCES as u32).map(|index| BlockTable {
            past: past - index as usize % 16,
            blocks: vec![2 * index, 2 * index + 1],
        });
        let tables = BlockTables::new(tables.collect());
        let layout = Sequences::from_lengths([1; SEQUENCES]);
        let batch = SequenceBatch::following(&rotary, layout, &tables, &[past + 1; SEQUENCES]);
        let shape = [SEQUENCES, config.d_model];
        let x = Tensor::<2>::full(shape, 0.1, (device, DType::F32));
        let mut forward = || {
            let y = layer.forward_cached(x.clone(), &batch, &lora, &mut cache, &tables);
            drop(y.expect("fits"));
            device.sync().expect("a device at rest");
        };
        forward();
        let count = LaunchCount::start();
        forward();
        launches = count.launches();
    }
    launches
}

#[test]
#[ignore = "needs a GPU: LORALOOM_TEST_DEVICE"]
fn a_decoded_token_launches_as_much_with_many_adapters_as_with_one() {
    let _alone = alone();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(MODEL);
    let config = LlamaConfig::from_directory(&directory).expect("a configuration");
    let checkpoint = Checkpoint::open(&directory).expect("a checkpoint");
    let backbone = Backbone::load(&checkpoint, &config, 1..2, FloatDType::F32, &device());
    let backbone = backbone.expect("a layer");
    let launches = |adapters| decode(&config, &backbone.layers()[0], adapters);
    let one = launches(1);
    println!("{one} launches of one layer for a token of each of 64 sequences");
    for adapters in [8, 64] {
        assert_eq!(launches(adapters), one, "{adapters} adapters");
    }
}

/// What cuBLAS does is counted on a CUDA device alone.
#[cfg(feature = "cuda")]
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn is_cuda() -> bool {
    let is_cuda = std::env::var("LORALOOM_TEST_DEVICE").is_ok_and(|name| name == "cuda");
    if !is_cuda {
        println!("skipped: no CUDA device");
    }
    is_cuda
}

/// A layer of Llama 3.1 8B over sequences of 1,024 tokens. Nothing is executed.
#[test]
#[ignore = "needs a CUDA device: LORALOOM_TEST_DEVICE"]
#[cfg(feature = "cuda")]
fn a_large_layer_launches_at_most_130_times_for_any_number_of_long_sequences() {
    if !is_cuda() {
        return;
    }
    let _alone = alone();
    let device = device();
    let config = LlamaConfig::named("llama-3.1-8b").expect("a known shape");
    let _dry_run = DryRun::new();
    let backbone = Backbone::random(&config, 1..2, FloatDType::BF16, &device);
    let backbone = backbone.expect("nothing is read");
    let layer = &backbone.layers()[0];
    let launches = |sequences, adapters| {
        pass(
            &config,
            layer,
            FloatDType::BF16,
            &vec![1024; sequences],
            adapters,
        )
        .0
    };
    let most = launches(16, 4);
    println!("{most} launches of a layer of 8B over 16 sequences of 1,024 tokens");
    assert!(most <= 130, "{most}");
    for (sequences, adapters) in [(1, 1), (4, 1), (16, 8), (16, 64)] {
        let found = launches(sequences, adapters);
        assert_eq!(found, most, "{sequences} sequences, {adapters} adapters");
    }
}

/// Operands and results of attention's launches at the same shape, each once, 1.8 GB of it to lay heads
/// side by side and back.
#[test]
#[ignore = "needs a CUDA device: LORALOOM_TEST_DEVICE"]
#[cfg(feature = "cuda")]
fn attention_moves_little_more_than_the_scores_that_are_seen() {
    if !is_cuda() {
        return;
    }
    let _alone = alone();
    let device = device().autodiff();
    let shape = loraloom_model::AttentionShape {
        sequences: Sequences::from_lengths([1024; 16]),
        num_heads: 32,
        num_kv_heads: 8,
        head_dim: 128,
        window: None,
        score_scale: None,
        softcap: None,
    };
    let _dry_run = DryRun::new();
    let rows = shape.sequences.rows();
    let leaf = |heads: usize| {
        let shape = [rows, heads * shape.head_dim];
        Tensor::<2>::zeros(shape, (&device, DType::BF16)).require_grad()
    };
    let [q, k, v] = [leaf(32), leaf(8), leaf(8)];
    let seed = leaf(32).detach();
    let count = LaunchCount::start();
    let out = loraloom_model::self_attention(q.clone(), k, v, &shape);
    let gradients = seed_gradient(out, seed).backward();
    assert!(q.grad(&gradients).is_some());
    let (moved, launches) = (count.bytes_moved() as f64 / 1e9, count.launches());
    println!("{moved:.2} GB by {launches} launches");
    assert!(8.0 < moved && moved <= 12.6, "{moved} GB");
    assert_eq!(launches, 49);
}
