use burn::tensor::{Gradients, Tensor};

use crate::{BatchLoraError, LoraPair, Routing, lora_linear};

/// One bank's adapters in one forward pass.
#[derive(Debug, Clone)]
pub struct BatchLora {
    weights: LoraPair,
    routing: Routing,
}

impl BatchLora {
    pub(crate) fn new(weights: LoraPair, routing: Routing) -> Self {
        Self { weights, routing }
    }

    pub(crate) fn weights(&self) -> &LoraPair {
        &self.weights
    }

    pub(crate) fn routing(&self) -> &Routing {
        &self.routing
    }

    /// Makes A and B leaves of a new graph.
    pub fn require_grad(self) -> Self {
        Self {
            weights: self.weights.map(|t| t.autodiff().require_grad()),
            ..self
        }
    }

    /// Takes A and B out of any graph.
    pub fn without_autodiff(self) -> Self {
        Self {
            weights: self.weights.map(Tensor::without_autodiff),
            ..self
        }
    }

    /// `x W` with every row's adapter added: x `[rows, d_in]`, weight `[d_in, d_out]`, output
    /// `[rows, d_out]`.
    ///
    /// # Errors
    /// As [`lora_linear`]'s.
    pub fn forward(&self, x: Tensor<2>, weight: Tensor<2>) -> Result<Tensor<2>, BatchLoraError> {
        let LoraPair { a, b } = self.weights.clone();
        lora_linear(x, weight, a, b, &self.routing)
    }

    /// Takes the gradients of A and B, `[Σr, d_in]` and `[Σr, d_out]`, if backward reached them.
    pub fn take_gradient(&self, gradients: &mut Gradients) -> Option<LoraPair> {
        self.weights.take_gradient(gradients)
    }
}
