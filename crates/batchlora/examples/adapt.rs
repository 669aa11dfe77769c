//! Two LoRA adapters of different rank over one frozen network: they learn two functions of the same points,
//! in one batch.
//!
//! ```sh
//! cargo run --release -p batchlora --example adapt
//! ```

use batchlora::{
    BatchAdamW, BatchLoraError, BatchLoraLinear, BatchLoraLinearConfig, LoraSpec, Segment, Segments,
};
use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Distribution, Tensor, activation::gelu},
};

/// The model as it was.
#[derive(Module, Debug)]
struct Network {
    hidden: Linear,
    output: Linear,
}

/// The model adapted: its linear layers are `BatchLoraLinear`s.
#[derive(Module, Debug)]
struct AdaptedNetwork {
    hidden: BatchLoraLinear,
    output: BatchLoraLinear,
}

impl AdaptedNetwork {
    /// Layers are numbered, so that each draws its own weights and dropout masks.
    fn new(base: Network, adapters: &BatchLoraLinearConfig) -> Result<Self, BatchLoraError> {
        Ok(Self {
            hidden: adapters.init(base.hidden, 0)?,
            output: adapters.init(base.output, 1)?,
        })
    }

    /// As before, with the segments of the batch: x `[rows, 2]`, output `[rows, 1]`.
    fn forward(&self, x: Tensor<2>, segments: &Segments) -> Result<Tensor<2>, BatchLoraError> {
        let x = gelu(self.hidden.forward(x, segments)?);
        self.output.forward(x, segments)
    }
}

fn main() -> Result<(), BatchLoraError> {
    let device = Device::flex().autodiff();
    device.seed(0);
    let base = Network {
        hidden: LinearConfig::new(2, 64).init(&device),
        output: LinearConfig::new(64, 1).init(&device),
    };
    let adapters = BatchLoraLinearConfig::new(vec![
        LoraSpec::new(4, 8.0),
        LoraSpec::new(16, 16.0).with_lora_dropout(0.02),
    ]);
    let mut model = AdaptedNetwork::new(base, &adapters)?;
    let optimizer = BatchAdamW::new().with_max_grad_norm(Some(1.0));

    // Rows 0..64 are the first adapter's, rows 64..128 the second's.
    let segment = |rows, slot| Segment { rows, slot };
    let segments = Segments::new(128, vec![segment(0..64, 0), segment(64..128, 1)])?;
    let mut losses = Vec::new();
    for _ in 0..300 {
        let points = Tensor::<2>::random([64, 2], Distribution::Uniform(-1.0, 1.0), &device);
        let [x, y] = [0, 1].map(|column| points.clone().narrow(1, column, 1));
        let targets = Tensor::cat(vec![x.clone() * y.clone(), (x + y).sin()], 0);

        let output = model.forward(Tensor::cat(vec![points; 2], 0), &segments)?;
        // Each adapter's loss is the mean over its own rows: their sum has each one's own gradient.
        let errors = (output - targets).square().reshape([2, 64]).mean_dim(1);
        losses = errors.clone().into_data().iter::<f32>().collect();
        let gradients = errors.sum().backward();
        let learning_rates = [Some(1e-2), Some(3e-3)];
        optimizer.step(
            &mut [&mut model.hidden, &mut model.output],
            gradients,
            &learning_rates,
        )?;
    }
    assert!(losses.iter().all(|&loss| loss < 0.02), "{losses:?}");

    // A snapshot without dropout and graph, and one adapter alone: B `[r, d_out]` of the hidden layer.
    let _snapshot = model.valid();
    let first = model.hidden.bank().extract(0)?;
    assert_eq!(first.map(|adapter| adapter.weights.b.dims()), Some([4, 64]));
    Ok(())
}
