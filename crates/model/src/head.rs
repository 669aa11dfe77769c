use burn::{
    module::{Module, Param},
    nn::RmsNorm,
    tensor::{DType, FloatDType, IndexingUpdateOp, Int, Tensor, TensorData},
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
        normalise(hidden, &self.norm).matmul(self.weight.val().transpose())
    }

    /// The cross-entropy of every target, `[targets]` in the order given, and the gradient of
    /// `Σ weight · loss` for the hidden states `[rows, d_model]`.
    ///
    /// Only rows that predict a target are projected, a chunk at a time: never are all logits held.
    pub fn loss(&self, hidden: Tensor<2>, targets: &Targets) -> (Tensor<1>, Tensor<2>) {
        let (device, [rows, d_model]) = (hidden.device(), hidden.dims());
        let count = targets.rows.len();
        let indices: Vec<i32> = targets.rows.iter().map(|&row| row as i32).collect();
        let indices = Tensor::<1, Int>::from_data(TensorData::new(indices, [count]), &device);
        let ids: Vec<i32> = targets.ids.iter().map(|&id| id as i32).collect();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [count]), &device);
        let weights = TensorData::new(targets.weights.clone(), [count]);
        let weights = Tensor::<1>::from_data(weights, (&device, DType::from(FloatDType::F32)));

        let selected = hidden.clone().select(0, indices.clone());
        let normal = normalise(selected.clone(), &self.norm);
        let weight = self.weight.val();
        let chunk = (LOGITS_PER_CHUNK / weight.dims()[0]).max(1);
        let (mut losses, mut gradients) = (Vec::new(), Vec::new());
        for start in (0..count).step_by(chunk) {
            let end = (start + chunk).min(count);
            let logits = normal
                .clone()
                .slice([start..end, 0..d_model])
                .matmul(weight.clone().transpose());
            let (loss, gradient) = cross_entropy(
                logits,
                ids.clone().slice([start..end]),
                weights.clone().slice([start..end]),
            );
            losses.push(loss);
            gradients.push(gradient.matmul(weight.clone()));
        }
        let gradient = rms_norm_backward(
            selected,
            self.norm.gamma.val(),
            Tensor::cat(gradients, 0),
            self.norm.epsilon,
        );
        let zeros = Tensor::zeros([rows, d_model], (&device, gradient.dtype()));
        let gradient = zeros.select_assign(0, indices, gradient, IndexingUpdateOp::Add);
        (Tensor::cat(losses, 0), gradient)
    }
}
