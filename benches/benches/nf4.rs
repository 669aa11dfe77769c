//! Time of a training step over a model in NF4 over that over the same model in float32, on the CPU, in turns: one decoder
//! layer of `TinyLlama`'s widths, with four adapters on its attention.
//!
//!     cargo bench --workspace --bench nf4

use burn::tensor::{Device, FloatDType};
use loraloom_benches::EndToEndBench;
use loraloom_model::{LlamaConfig, Projection, Quantization};
use serde_json::json;

const ADAPTERS: usize = 4;
/// Tokens of a step, and of a sequence.
const CASES: [[usize; 2]; 6] = [
    [256, 64],
    [512, 128],
    [1024, 256],
    [2048, 512],
    [4096, 512],
    [8192, 512],
];

fn main() -> anyhow::Result<()> {
    let mut model = LlamaConfig::named("tinyllama-1.1b").ok_or(anyhow::Error::msg("a shape"))?;
    model.num_hidden_layers = 1;
    model.rotations.truncate(1);
    model.sliding_window.truncate(1);
    model.vocab_size = 2048;
    let quantization = Quantization {
        double_quant: true,
        skip: Vec::new(),
    };
    let quantized = model.clone().with_quantization(quantization)?;
    for [tokens, length] in CASES {
        let bench = |model: &LlamaConfig| EndToEndBench {
            shape: String::new(),
            model: model.clone(),
            adapters: vec![ADAPTERS],
            rank: 16,
            use_dora: false,
            targets: vec![Projection::Q, Projection::K, Projection::V, Projection::O],
            batch: tokens / length / ADAPTERS,
            microbatches: 1,
            length,
            dtype: FloatDType::F32,
            steps: 1,
            gradient_checkpointing: false,
            vs_sequential: false,
            profile: false,
        };
        let seconds = bench(&model).step_seconds(&bench(&quantized), &Device::flex())?;
        let case = json!({
            "tokens": tokens,
            "float32_milliseconds": 1e3 * seconds[0],
            "nf4_milliseconds": 1e3 * seconds[1],
            "ratio": seconds[1] / seconds[0],
        });
        #[expect(clippy::print_stdout, reason = "a benchmark prints its report")]
        {
            println!("{case}");
        }
    }
    Ok(())
}
