//! Time of products with the rows of a weight on the CPU: `multiply_parallel` and Burn's `matmul`, in turns, over copies of the
//! weight that do not fit in any cache.
//!
//!     cargo bench --workspace --bench few_rows

use std::time::Instant;

use batchlora_kernels::matrix::{Matrix, MatrixMut, multiply_parallel};
use burn::tensor::{Device, Tensor, TensorData};
use serde_json::json;

/// `[d_out, d_in]`.
const WEIGHTS: [[usize; 2]; 4] = [[512, 512], [2048, 512], [512, 2048], [2048, 2048]];
const ROWS: [usize; 8] = [2, 4, 8, 16, 64, 128, 256, 512];
const BYTES: usize = 256 << 20;
const ROUNDS: usize = 5;

fn main() {
    let device = Device::flex();
    for [d_out, d_in] in WEIGHTS {
        let copies = BYTES / (4 * d_out * d_in);
        let weights: Vec<Vec<f32>> = (0..copies).map(|seed| values(seed, d_out * d_in)).collect();
        let tensor = |values: &Vec<f32>, shape: [usize; 2]| {
            Tensor::<2>::from_data(TensorData::new(values.clone(), shape), &device)
        };
        let transposed = |weight| tensor(weight, [d_out, d_in]).transpose();
        let tensors: Vec<_> = weights.iter().map(transposed).collect();
        for rows in ROWS {
            let x = values(copies, rows * d_in);
            let x_tensor = tensor(&x, [rows, d_in]);
            let mut out = vec![0.0; rows * d_out];
            let mut seconds = [f64::MAX; 2];
            for _ in 0..ROUNDS {
                let begun = Instant::now();
                for weight in &weights {
                    multiply_parallel(
                        MatrixMut::new(&mut out, rows, d_out, d_out),
                        Matrix::new(&x, rows, d_in, d_in),
                        Matrix::new(weight, d_out, d_in, d_in).transposed(),
                    );
                }
                seconds[0] = seconds[0].min(begun.elapsed().as_secs_f64());
                let begun = Instant::now();
                for weight in &tensors {
                    std::hint::black_box(x_tensor.clone().matmul(weight.clone()));
                }
                seconds[1] = seconds[1].min(begun.elapsed().as_secs_f64());
            }
            let [ours, burns] = seconds.map(|seconds| 1e6 * seconds / copies as f64);
            let case = json!({
                "weight": [d_out, d_in],
                "rows": rows,
                "microseconds": ours,
                "matmul_microseconds": burns,
                "ratio": burns / ours,
            });
            #[expect(clippy::print_stdout, reason = "a benchmark prints its report")]
            {
                println!("{case}");
            }
        }
    }
}

fn values(seed: usize, count: usize) -> Vec<f32> {
    let value = |at| ((at * 7 + seed) % 13) as f32 / 13.0 - 0.5;
    (0..count).map(value).collect()
}
