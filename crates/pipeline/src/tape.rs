use batchlora::seed_gradient;
use burn::tensor::{Device, Gradients, Tensor};
use loraloom_model::{LayerGradients, LayerLora};

/// What one decoder layer needs for its backward pass.
#[derive(Debug)]
pub(crate) struct LayerTape {
    /// The layer's input `[rows, d_model]`: a leaf of the layer's graph.
    pub(crate) input: Tensor<2>,
    /// The layer's adapters: leaves of the same graph.
    pub(crate) lora: LayerLora,
    /// The end of the graph; `None` if the layer is to be recomputed.
    pub(crate) output: Option<Tensor<2>>,
}

/// What a stage keeps of a forward pass until its backward pass: one graph per decoder layer of the
/// group's, from the first layer that has an adapter on.
#[derive(Debug)]
pub(crate) struct Tape {
    pub(crate) layers: Vec<LayerTape>,
}

/// Gradients of a stage's packed adapter weights, by decoder layer.
#[derive(Debug, Clone)]
pub(crate) struct StageGradients {
    pub(crate) layers: Vec<LayerGradients>,
}

impl StageGradients {
    /// Adds the gradients of another micro-batch of the same step.
    pub(crate) fn accumulate(&mut self, other: Self) {
        for (sum, part) in self.layers.iter_mut().zip(other.layers) {
            sum.accumulate(part);
        }
    }
}

/// Backward through one graph whose end has this gradient.
pub(crate) fn backward(output: Tensor<2>, gradient: Tensor<2>) -> Gradients {
    seed_gradient(output, gradient).backward()
}

/// More operations than a decoder layer has one after another.
const LAYER_DEPTH: usize = 64;

/// Frees the graphs of forward passes that were dropped without a backward pass.
///
/// Burn frees them when any backward pass ends, one operation of each graph at a time: the last whose
/// result nobody holds.
pub(crate) fn free_dropped_graphs(device: &Device) {
    let device = device.clone().without_autodiff();
    for _ in 0..LAYER_DEPTH {
        let ones = Tensor::<2>::ones([1, 1], &device);
        backward(ones.clone().autodiff().require_grad(), ones);
    }
}
