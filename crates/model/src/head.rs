use batchlora::frozen_linear;
use burn::{
    module::{Module, Param},
    nn::RmsNorm,
    tensor::{DType, Device, FloatDType, IndexingUpdateOp, Int, Tensor, TensorData},
};

use crate::{
    layer::normalise,
    ops::{cross_entropy, rms_norm_backward},
};

/// Logits of so many elements are held at a time.
const LOGITS_PER_CHUNK: usize = 1 << 24;

/// What is predicted from which rows of a batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Targets {
    /// Row of the batch that predicts the token.
    pub rows: Vec<usize>,
    /// The token to be predicted.
    pub ids: Vec<u32>,
    /// What the token's loss is multiplied by in the gradient: one over the target tokens of its
    /// task's whole step.
    pub weights: Vec<f32>,
}

/// The end of the model: final norm and output projection, and the loss fused with them.
#[derive(Module, Debug)]
pub struct LanguageModelHead {
    pub(crate) norm: RmsNorm,
    /// The output projection as stored, `[vocabulary, d_model]`: with tied embeddings this is the
    /// embedding itself.
    pub(crate) weight: Param<Tensor<2>>,
}

impl LanguageModelHead {
    /// Logits `[rows, vocabulary]` of hidden states `[rows, d_model]`.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        frozen_linear(normalise(hidden, &self.norm), self.weight.val().transpose())
    }

    /// The cross-entropy of every target, `[targets]` in the order given, and the gradient of
    /// `Σ weight · loss` for the hidden states `[rows, d_model]`.
    ///
    /// Only rows that predict a target are projected, a chunk at a time: never are all logits held.
    pub fn loss(&self, hidden: Tensor<2>, targets: &Targets) -> (Tensor<1>, Tensor<2>) {
        let (device, [rows, d_model]) = (hidden.device(), hidden.dims());
        if targets.rows.is_empty() {
            let zeros = hidden.zeros_like();
            return (self.target_losses(hidden, targets), zeros);
        }
        let selected = hidden.select(0, integers(&targets.rows, &device));
        let mut gradients = Vec::new();
        let losses = self.chunked_losses(selected.clone(), targets, |gradient| {
            gradients.push(frozen_linear(gradient, self.weight.val()));
        });
        let gradient = rms_norm_backward(
            selected,
            self.norm.gamma.val(),
            Tensor::cat(gradients, 0),
            self.norm.epsilon,
        );
        let zeros = Tensor::zeros([rows, d_model], (&device, gradient.dtype()));
        let rows = integers(&targets.rows, &device);
        (
            losses,
            zeros.select_assign(0, rows, gradient, IndexingUpdateOp::Add),
        )
    }

    /// The losses of [`loss`](Self::loss) without the gradient.
    pub fn target_losses(&self, hidden: Tensor<2>, targets: &Targets) -> Tensor<1> {
        let rows = integers(&targets.rows, &hidden.device());
        self.chunked_losses(hidden.select(0, rows), targets, drop)
    }

    /// Losses of hidden states already selected, `[targets, d_model]`; every chunk's gradient of
    /// the logits goes to `with_gradient`.
    fn chunked_losses(
        &self,
        selected: Tensor<2>,
        targets: &Targets,
        mut with_gradient: impl FnMut(Tensor<2>),
    ) -> Tensor<1> {
        let (device, [count, d_model]) = (selected.device(), selected.dims());
        if count == 0 {
            return Tensor::zeros([0], (&device, DType::from(FloatDType::F32)));
        }
        let ids = integers(&targets.ids, &device);
        let weights = TensorData::new(targets.weights.clone(), [count]);
        let weights = Tensor::<1>::from_data(weights, (&device, DType::from(FloatDType::F32)));
        let normal = normalise(selected, &self.norm);
        let projection = self.weight.val().transpose();
        let chunk = (LOGITS_PER_CHUNK / projection.dims()[1]).max(1);
        let losses = (0..count).step_by(chunk).map(|start| {
            let end = (start + chunk).min(count);
            let rows = normal.clone().slice([start..end, 0..d_model]);
            let (loss, gradient) = cross_entropy(
                frozen_linear(rows, projection.clone()),
                ids.clone().narrow(0, start, end - start),
                weights.clone().narrow(0, start, end - start),
            );
            with_gradient(gradient);
            loss
        });
        Tensor::cat(losses.collect(), 0)
    }
}

fn integers<T: Copy + TryInto<i32>>(values: &[T], device: &Device) -> Tensor<1, Int> {
    // Rows and tokens of a batch are far below 2^31.
    let values: Vec<i32> = values
        .iter()
        .map(|&v| v.try_into().unwrap_or(i32::MAX))
        .collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}
