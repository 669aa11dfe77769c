//! Kernel launches of a layer do not depend on what is in a batch.
//!
//! The count is the process's, hence a binary of its own. The CPU has no launches to count:
//! `LORALOOM_TEST_DEVICE=wgpu` (or `cuda`) and `--include-ignored` run this test on a GPU.
#![cfg(feature = "cubecl")]

use std::path::Path;

use batchlora::{AdapterState, LaunchCount, LoraPair, LoraSpec, Segment, Segments, seed_gradient};
use burn::tensor::{Device, FloatDType, Tensor};
use loraloom_model::{
    Checkpoint, DecoderLayer, LayerAdapter, LayerBanks, LlamaConfig, Projection, SequenceBatch,
    Sequences,
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

fn adapter(config: &LlamaConfig, rank: usize, device: &Device) -> LayerAdapter {
    let shapes = config.linears();
    Projection::ALL.map(|projection| {
        let shape = &shapes[projection as usize];
        let part = |width| Tensor::<2>::full([rank, width], 0.01, device);
        let weights = LoraPair {
            a: part(shape.d_in),
            b: part(shape.d_out),
        };
        let state = AdapterState::new(LoraSpec::new(rank, 2.0), weights);
        Some(state.expect("a valid adapter"))
    })
}

/// Launches of forward and backward over so many sequences of so many adapters, after a first pass.
fn launches(device: &Device, sequences: usize, adapters: usize) -> u64 {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(MODEL);
    let config = LlamaConfig::from_directory(&directory).expect("a configuration");
    let checkpoint = Checkpoint::open(&directory).expect("a checkpoint");
    let layer = DecoderLayer::load(&checkpoint, &config, 1, FloatDType::F32, device);
    let layer = layer.expect("a layer");
    let mut banks = LayerBanks::new(&config, 1, device);
    for slot in 0..adapters {
        let adapter = adapter(&config, 1 + slot % 4, device);
        banks.push(adapter).expect("fits");
    }
    let lengths = vec![LENGTH; sequences];
    let layout = Sequences::from_lengths(lengths.iter().copied());
    let rows = layout.rows();
    let segments = (0..adapters).map(|slot| Segment {
        rows: slot * rows / adapters..(slot + 1) * rows / adapters,
        slot,
    });
    let segments = Segments::new(rows, segments.collect()).expect("in order");
    let batch = SequenceBatch::new(&config, layout, &lengths, device);
    let autodiff = device.clone().autodiff();
    let pass = || {
        let lora = banks.attach(&segments, None).expect("slots exist");
        let lora = lora.require_grad();
        let x = Tensor::<2>::full([rows, config.d_model], 0.1, &autodiff).require_grad();
        let y = layer.forward(x.clone(), &batch, &lora).expect("fits");
        let seed = Tensor::full(y.dims(), 0.1, &autodiff);
        autodiff.sync().expect("a device at rest");
        let count = LaunchCount::start();
        let y = layer.forward(x.clone(), &batch, &lora).expect("fits");
        let mut gradients = seed_gradient(y, seed).backward();
        let dx = x.grad(&gradients).expect("a gradient");
        let _of_adapters = lora.take_gradients(&mut gradients);
        autodiff.sync().expect("a device at rest");
        let launches = count.launches();
        let dx = loraloom_model::to_host(dx).expect("a value");
        assert!(dx.iter().all(|value| value.is_finite()));
        launches
    };
    pass();
    pass()
}

#[test]
#[ignore = "needs a GPU: LORALOOM_TEST_DEVICE"]
fn a_layer_launches_as_much_for_many_sequences_and_adapters_as_for_one() {
    let device = device();
    let one = launches(&device, 1, 1);
    println!("{one} launches of one layer, forward and backward");
    for (sequences, adapters) in [(8, 1), (64, 1), (8, 8), (64, 8), (64, 64)] {
        assert_eq!(
            launches(&device, sequences, adapters),
            one,
            "{sequences} sequences, {adapters} adapters"
        );
    }
}
