//! Time of a linear layer on the CPU in batches of up to 64 rows, as decode steps have them: with eight adapters, and frozen. The
//! two take turns, over copies of the weights that take 64 MB.
//!
//!     cargo bench --workspace --bench adapters

use batchlora::{
    AdapterBank, AdapterState, BatchLoraError, LoraSpec, Segment, Segments, frozen_linear,
};
use burn::tensor::{Device, Distribution, Tensor};
use loraloom_benches::median_seconds;
use loraloom_inference::apart;
use serde_json::json;

/// `[d_in, d_out]`.
const WEIGHTS: [[usize; 2]; 3] = [[512, 512], [512, 1408], [1408, 512]];
const RANKS: [usize; 8] = [4, 8, 8, 16, 16, 32, 32, 64];
const ROWS: [usize; 5] = [1, 4, 8, 16, 64];
const BYTES: usize = 64 << 20;

fn main() -> anyhow::Result<()> {
    apart(measure)
}

fn measure() -> anyhow::Result<()> {
    let device = Device::flex();
    for [d_in, d_out] in WEIGHTS {
        let copies = BYTES / (4 * d_in * d_out);
        // Checkpoints store weights `[d_out, d_in]`.
        let weights: Vec<_> = (0..copies)
            .map(|_| random([d_out, d_in]).transpose())
            .collect();
        let banks = (0..copies as u64).map(|seed| bank([d_in, d_out], seed));
        let banks = banks.collect::<Result<Vec<_>, _>>()?;
        for rows in ROWS {
            let x = random([rows, d_in]);
            let segments = segments(rows)?;
            let loras = banks.iter().map(|bank| bank.attach(&segments, None));
            let loras = loras.collect::<Result<Option<Vec<_>>, _>>()?;
            let loras = loras.ok_or_else(|| anyhow::anyhow!("no row has an adapter"))?;
            let layers: Vec<_> = loras.into_iter().zip(&weights).collect();
            let frozen = || {
                for (_, weight) in &layers {
                    std::hint::black_box(frozen_linear(x.clone(), (*weight).clone()));
                }
                Ok(())
            };
            let adapted = || {
                for (lora, weight) in &layers {
                    std::hint::black_box(lora.forward(x.clone(), (*weight).clone())?);
                }
                Ok(())
            };
            let work: Vec<Box<dyn FnMut() -> Result<(), _>>> =
                vec![Box::new(frozen), Box::new(adapted)];
            let seconds = median_seconds(&device, work)?;
            let [frozen, adapted] = [0, 1].map(|at| 1e6 * seconds[at] / copies as f64);
            let case = json!({
                "weight": [d_in, d_out],
                "rows": rows,
                "frozen_microseconds": frozen,
                "adapted_microseconds": adapted,
                "ratio": adapted / frozen,
            });
            #[expect(clippy::print_stdout, reason = "a benchmark prints its report")]
            {
                println!("{case}");
            }
        }
    }
    Ok(())
}

fn random(shape: [usize; 2]) -> Tensor<2> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

fn bank([d_in, d_out]: [usize; 2], seed: u64) -> Result<AdapterBank, BatchLoraError> {
    let mut bank = AdapterBank::new(d_in, d_out, 0, &Device::flex());
    for (slot, rank) in RANKS.into_iter().enumerate() {
        let spec = LoraSpec::new(rank, 16.0);
        let seed = seed * RANKS.len() as u64 + slot as u64;
        bank.push(Some(AdapterState::init(
            spec,
            [d_in, d_out],
            seed,
            0,
            &Device::flex(),
        )?))?;
    }
    Ok(bank)
}

/// As many rows for each adapter; with fewer rows than adapters, one for each of the last.
fn segments(rows: usize) -> Result<Segments, BatchLoraError> {
    let each = rows.div_ceil(RANKS.len());
    let count = rows / each;
    let first = RANKS.len() - count;
    let segment = |index: usize| Segment {
        rows: index * each..(index + 1) * each,
        slot: first + index,
    };
    Segments::new(rows, (0..count).map(segment).collect())
}
