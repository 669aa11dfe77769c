//! Time of an adapted layer with DoRA over that with LoRA on the CPU, forward and backward, in turns: as it is after an
//! optimizer step, which changes the norms, and with the norms of a step before.
//!
//!     cargo bench -p loraloom-benches --bench dora

use batchlora::{AdapterBank, AdapterState, BatchLora, LoraSpec, Segment, Segments, seed_gradient};
use burn::tensor::{Device, Distribution, Tensor};
use loraloom_benches::median_seconds;
use serde_json::json;

const ADAPTERS: usize = 4;

fn main() -> anyhow::Result<()> {
    let mut cases = Vec::new();
    for (rows, [d_in, d_out], rank) in [
        (512, [512, 512], 16),
        (1024, [1024, 1024], 16),
        (1024, [2048, 2048], 16),
        (2048, [1024, 2816], 16),
        (1024, [1024, 1024], 64),
    ] {
        let x = random([rows, d_in]).autodiff().require_grad();
        let (weight, gradient) = (random([d_in, d_out]), random([rows, d_out]));
        let pass = |lora: BatchLora| {
            let output = lora.require_grad().forward(x.clone(), weight.clone());
            let output = output.map_err(loraloom_pipeline::PipelineError::from)?;
            std::hint::black_box(seed_gradient(output, gradient.clone()).backward());
            Ok(())
        };
        let banks = [false, true].map(|dora| {
            let spec = LoraSpec::new(rank, 16.0).with_use_dora(dora);
            bank(spec, &weight)
        });
        let segments = segments(rows)?;
        let kept = banks[1].attach(&segments, None)?;
        kept.clone().map_or(Ok(()), &pass)?;
        let mut work: Vec<Box<dyn FnMut() -> Result<(), _>>> = Vec::new();
        for bank in &banks {
            work.push(Box::new(|| {
                // A copy with another slot forgets the norms of adapted weights, not those of the frozen one.
                let mut bank = bank.clone();
                bank.push(None)?;
                match bank.attach(&segments, None)? {
                    Some(lora) => pass(lora),
                    None => Ok(()),
                }
            }));
        }
        work.push(Box::new(|| kept.clone().map_or(Ok(()), &pass)));
        let seconds = median_seconds(&Device::flex(), work)?;
        cases.push(json!({
            "rows": rows, "d_in": d_in, "d_out": d_out, "rank": rank,
            "lora_milliseconds": 1e3 * seconds[0],
            "dora": seconds[1] / seconds[0],
            "dora_with_norms": seconds[2] / seconds[0],
        }));
    }
    #[expect(clippy::print_stdout, reason = "a benchmark prints its report")]
    for case in cases {
        println!("{case}");
    }
    Ok(())
}

fn random(shape: [usize; 2]) -> Tensor<2> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

fn bank(spec: LoraSpec, weight: &Tensor<2>) -> AdapterBank {
    let [d_in, d_out] = weight.dims();
    let mut bank = AdapterBank::new(d_in, d_out, 0, &Device::flex());
    for seed in 0..ADAPTERS as u64 {
        let state = AdapterState::init(spec, [d_in, d_out], seed, 0, &Device::flex());
        let pushed = state.and_then(|state| bank.push(Some(state.with_norms_of(weight))));
        assert!(pushed.is_ok(), "{pushed:?}");
    }
    bank
}

fn segments(rows: usize) -> Result<Segments, batchlora::BatchLoraError> {
    let each = rows / ADAPTERS;
    let segment = |slot| Segment {
        rows: slot * each..(slot + 1) * each,
        slot,
    };
    Segments::new(rows, (0..ADAPTERS).map(segment).collect())
}
