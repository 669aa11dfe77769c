//! The operator, forward and backward, beside the loop over adapters that it replaces, on the CPU.
//!
//!     cargo bench -p loraloom-benches --bench operator
//!
//! Prints a JSON line per case: the median of interleaved runs of each.

use std::time::Instant;

use batchlora::{
    AdapterBank, AdapterState, DropoutDraw, LoraSpec, Segment, Segments, seed_gradient,
};
use burn::tensor::{Device, Distribution, Tensor};
use serde_json::json;

const RUNS: usize = 9;

struct Case {
    adapters: usize,
    rows: usize,
    d_in: usize,
    d_out: usize,
    rank: usize,
    dropout: f64,
}

fn main() {
    for (adapters, rows, d_in, d_out, rank, dropout) in [
        (1, 256, 512, 512, 16, 0.0),
        (8, 256, 512, 512, 16, 0.0),
        (8, 2048, 512, 512, 16, 0.0),
        (8, 2048, 512, 512, 16, 0.05),
        (8, 2048, 512, 1376, 16, 0.0),
        (32, 2048, 512, 512, 8, 0.0),
        (1, 2048, 512, 512, 64, 0.0),
    ] {
        Case {
            adapters,
            rows,
            d_in,
            d_out,
            rank,
            dropout,
        }
        .report();
    }
}

impl Case {
    fn report(&self) {
        let device = Device::flex();
        let random = |shape: [usize; 2]| Tensor::<2>::random(shape, Distribution::Default, &device);
        let weight = random([self.d_in, self.d_out]);
        let x = random([self.rows, self.d_in]);
        let gradient = random([self.rows, self.d_out]);
        let mut bank = AdapterBank::new(self.d_in, self.d_out, 0, &device);
        let spec = LoraSpec::new(self.rank, 32.0).with_lora_dropout(self.dropout);
        let shape = [self.d_in, self.d_out];
        let mut pairs = Vec::new();
        for seed in 0..self.adapters {
            let state = AdapterState::init(spec, shape, seed as u64, 0, &device);
            let state = state.expect("a legal adapter");
            pairs.push(state.weights.clone());
            bank.push(Some(state)).expect("it fits its layer");
        }
        let each = self.rows / self.adapters;
        let segments = (0..self.adapters)
            .map(|slot| Segment {
                rows: slot * each..(slot + 1) * each,
                slot,
            })
            .collect();
        let segments = Segments::new(self.rows, segments).expect("in order");
        let draws = vec![DropoutDraw { seed: 1, step: 1 }; self.adapters];
        let lora = bank
            .attach(&segments, Some(&draws))
            .expect("slots exist")
            .expect("adapters");

        let batched = || {
            let lora = lora.clone().require_grad();
            let x = x.clone().autodiff().require_grad();
            let h = lora
                .forward(x.clone(), weight.clone())
                .expect("operands that fit");
            let mut gradients = seed_gradient(h, gradient.clone()).backward();
            (lora.take_gradient(&mut gradients), x.grad(&gradients))
        };
        // What a user of Burn writes: one product with the frozen weight, then adapter by adapter.
        let scale = spec.scale();
        let looped = || {
            let x = x.clone().autodiff().require_grad();
            let h = x.clone().matmul(weight.clone());
            let parts: Vec<_> = pairs
                .iter()
                .enumerate()
                .map(|(index, pair)| {
                    let rows = index * each..(index + 1) * each;
                    let a = pair.a.clone().autodiff().require_grad();
                    let b = pair.b.clone().autodiff().require_grad();
                    let mut x = x.clone().slice([rows.clone(), 0..self.d_in]);
                    if self.dropout > 0.0 {
                        let kept = Distribution::Bernoulli(1.0 - self.dropout);
                        let mask = Tensor::random([each, self.d_in], kept, &device);
                        x = x * (mask / (1.0 - self.dropout));
                    }
                    let h = h.clone().slice([rows, 0..self.d_out]);
                    h + x.matmul(a.transpose()).matmul(b).mul_scalar(scale)
                })
                .collect();
            let h = Tensor::cat(parts, 0);
            let gradients = seed_gradient(h, gradient.clone()).backward();
            x.grad(&gradients)
        };

        let (mut fast, mut slow) = (Vec::new(), Vec::new());
        for run in 0..=RUNS {
            let started = Instant::now();
            std::hint::black_box(batched());
            let batched = started.elapsed().as_secs_f64() * 1e3;
            let started = Instant::now();
            std::hint::black_box(looped());
            let looped = started.elapsed().as_secs_f64() * 1e3;
            if run > 0 {
                fast.push(batched);
                slow.push(looped);
            }
        }
        let (fast, slow) = (median(fast), median(slow));
        let report = json!({
            "adapters": self.adapters, "rows": self.rows, "d_in": self.d_in, "d_out": self.d_out,
            "rank": self.rank, "dropout": self.dropout, "milliseconds": fast,
            "loop_milliseconds": slow, "ratio": slow / fast,
        });
        #[expect(
            clippy::print_stdout,
            reason = "the report is what the benchmark is for"
        )]
        {
            println!("{report}");
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
