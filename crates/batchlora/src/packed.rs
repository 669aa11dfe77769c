//! The parameters of a bank.

use burn::{
    module::{Param, ParamId},
    tensor::Tensor,
};

use crate::LoraPair;

/// The rows of all adapters, slot after slot; moments are outside of any graph.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    pub(crate) a: Param<Tensor<2>>,
    pub(crate) b: Param<Tensor<2>>,
    pub(crate) magnitude: Option<Param<Tensor<2>>>,
    pub(crate) first_moment: LoraPair,
    pub(crate) second_moment: LoraPair,
}

fn leaf(value: Tensor<2>) -> Param<Tensor<2>> {
    Param::initialized(ParamId::new(), value).set_require_grad(true)
}

impl Packed {
    pub(crate) fn new([weights, first_moment, second_moment]: [LoraPair; 3]) -> Self {
        Self {
            a: leaf(weights.a),
            b: leaf(weights.b),
            magnitude: weights.magnitude.map(leaf),
            first_moment,
            second_moment,
        }
    }

    pub(crate) fn weights(&self) -> LoraPair {
        LoraPair {
            a: self.a.val(),
            b: self.b.val(),
            magnitude: self.magnitude.as_ref().map(Param::val),
        }
    }

    /// Maps weights, first and second moments, all outside of any graph and without another owner. A, B and magnitudes
    /// stay the parameters that they are.
    pub(crate) fn map(self, f: impl FnOnce([LoraPair; 3]) -> [LoraPair; 3]) -> Self {
        let (a, restore_a) = detached(self.a);
        let (b, restore_b) = detached(self.b);
        let (magnitude, restore_magnitude) = self.magnitude.map(detached).unzip();
        let [weights, first_moment, second_moment] = f([
            LoraPair { a, b, magnitude },
            self.first_moment,
            self.second_moment,
        ]);
        Self {
            a: restore_a(weights.a),
            b: restore_b(weights.b),
            magnitude: weights.magnitude.map(|value| match restore_magnitude {
                Some(restore) => restore(value),
                None => leaf(value),
            }),
            first_moment,
            second_moment,
        }
    }
}

/// A parameter's value outside of any graph, and a function that gives it another value.
fn detached(param: Param<Tensor<2>>) -> (Tensor<2>, impl FnOnce(Tensor<2>) -> Param<Tensor<2>>) {
    let (id, value, mapper) = param.consume();
    let strategy = value.gradient_checkpointing_strategy();
    let tracked = value.is_require_grad();
    let restore = move |next: Tensor<2>| {
        let next = match strategy {
            Some(strategy) => next
                .autodiff()
                .with_gradient_checkpointing_strategy(strategy)
                .set_require_grad(tracked),
            None => next,
        };
        Param::from_mapped_value(id, next, mapper)
    };
    (value.without_autodiff(), restore)
}
