use std::sync::{Arc, OnceLock};

use burn::tensor::{Gradients, Tensor};

use crate::{
    BatchLoraError, FrozenWeight, LoraPair, LoraSpec, Routing,
    dora::{adapted_norms, squared_norms},
    linear::{dora_linear, lora_linear},
};

/// One bank's adapters in one forward pass.
#[derive(Debug, Clone)]
pub struct BatchLora {
    weights: LoraPair,
    routing: Routing,
    /// 1 for rows of A and B that are trained, `[Σr, 1]`; `None` if all are.
    trained_rows: Option<Tensor<2>>,
    /// Of the packed adapters, in their order.
    specs: Vec<LoraSpec>,
    norms: Arc<DoraNorms>,
}

/// Norms of one layer's weight, for DoRA.
#[derive(Debug, Default)]
pub(crate) struct DoraNorms {
    /// Of the weight alone, squared.
    squares: OnceLock<Tensor<2>>,
    /// With each of the adapters that have a magnitude.
    adapted: OnceLock<Tensor<2>>,
}

impl DoraNorms {
    /// The same for other adapters.
    pub(crate) fn of_other_adapters(&self) -> Self {
        Self {
            squares: self.squares.clone(),
            adapted: OnceLock::new(),
        }
    }
}

impl BatchLora {
    pub(crate) fn new(
        weights: LoraPair,
        routing: Routing,
        specs: Vec<LoraSpec>,
        norms: Arc<DoraNorms>,
        trained_rows: Option<Tensor<2>>,
    ) -> Self {
        Self {
            weights,
            routing,
            trained_rows,
            specs,
            norms,
        }
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
    /// `[rows, d_out]`. All passes of one bank take the same weight: norms of it are kept for DoRA.
    ///
    /// # Errors
    /// As [`lora_linear`]'s.
    pub fn forward(
        &self,
        x: Tensor<2>,
        weight: impl Into<FrozenWeight>,
    ) -> Result<Tensor<2>, BatchLoraError> {
        let weight = weight.into();
        let weights = self.weights.clone();
        if self.routing.uses_dora() {
            let norms = self.norms(&weight);
            return dora_linear(x, weight, weights, norms, &self.routing);
        }
        lora_linear(x, weight, weights.a, weights.b, &self.routing)
    }

    /// The norms of the adapted weights of all adapters with a magnitude, `[magnitudes, d_out]`.
    fn norms(&self, weight: &FrozenWeight) -> Tensor<2> {
        let compute = || {
            let weight = weight.dense();
            let squares = self.norms.squares.get_or_init(|| squared_norms(&weight));
            adapted_norms(&weight, squares, &self.weights, &self.specs)
        };
        self.norms.adapted.get_or_init(compute).clone()
    }

    /// Takes the gradients of A and B, `[Σr, d_in]` and `[Σr, d_out]`, if backward reached them, and of magnitudes.
    pub fn take_gradient(&self, gradients: &mut Gradients) -> Option<LoraPair> {
        let gradient = self.weights.take_gradient(gradients)?;
        Some(trained_part(gradient, self.trained_rows.as_ref()))
    }
}

/// A gradient without that of rows that are not trained.
pub(crate) fn trained_part(gradient: LoraPair, trained_rows: Option<&Tensor<2>>) -> LoraPair {
    match trained_rows {
        Some(rows) => LoraPair {
            a: gradient.a * rows.clone(),
            b: gradient.b * rows.clone(),
            magnitude: gradient.magnitude,
        },
        None => gradient,
    }
}
