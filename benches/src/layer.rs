//! One adapted layer with random operands, computed in several ways.

use std::{cell::RefCell, ops::Range};

use batchlora::{
    AdapterBank, AdapterState, BatchLora, BatchLoraError, DropoutDraw, FrozenWeight, LoraPair,
    LoraSpec, Nf4, Routing, Segment, Segments, frozen_linear,
    primitives::{self, Side},
    seed_gradient,
};
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};
use loraloom_pipeline::PipelineError;

use crate::timing::device_failure;

/// The timed operations: an adapted layer, forward and backward, in three ways, and the kernels of the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// The products with the frozen weight alone, `x W` and `dH Wᵀ`: the lower bound.
    Frozen,
    /// One adapter after another, of Burn's operations, differentiated by Burn.
    Composed,
    /// The kernel of `S = D(X) Aᵀ`.
    Shrink,
    /// The kernel of `H += s · S B`; a forward and backward runs it twice, once for dX.
    ExpandAdd,
    /// The kernels of `dA = dSᵀ D(X)`.
    WeightGrad,
    /// The kernels of dS and dB.
    OutputGrads,
    /// batchlora's operator: the frozen products and all of these kernels.
    Fused,
}

impl Kernel {
    /// In the order of a report.
    pub(crate) const ALL: [Self; 7] = [
        Self::Frozen,
        Self::Composed,
        Self::Shrink,
        Self::ExpandAdd,
        Self::WeightGrad,
        Self::OutputGrads,
        Self::Fused,
    ];

    /// The name in a table and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Frozen => "frozen",
            Self::Composed => "composed",
            Self::Shrink => "shrink",
            Self::ExpandAdd => "expand_add",
            Self::WeightGrad => "weight_grad",
            Self::OutputGrads => "output_grads",
            Self::Fused => "fused",
        }
    }
}

/// An adapter's share of the batch.
#[derive(Debug)]
struct Part {
    rows: Range<usize>,
    weights: LoraPair,
    scale: f64,
}

/// An adapted layer, its input and the gradient of its output.
#[derive(Debug)]
pub(crate) struct Layer {
    x: Tensor<2>,
    weight: FrozenWeight,
    gradient: Tensor<2>,
    parts: Vec<Part>,
    lora: BatchLora,
    routing: Routing,
    packed: LoraPair,
    /// S, `[rows, rank_max]`.
    narrow: Tensor<2>,
    /// H, to which `expand_add` adds in place, `[rows, d_out]`.
    expanded: RefCell<Option<Tensor<2>>>,
    dropout: f64,
}

/// Results of a forward and backward.
#[derive(Debug)]
struct Pass {
    /// `[rows, d_out]`.
    output: Tensor<2>,
    /// `[rows, d_in]`.
    input_gradient: Tensor<2>,
    /// Of all adapters packed, or of each adapter.
    adapters: Vec<LoraPair>,
}

impl Pass {
    fn results(self) -> Vec<Tensor<2>> {
        let mut results = vec![self.output, self.input_gradient];
        results.extend(self.adapters.into_iter().flat_map(|pair| [pair.a, pair.b]));
        results
    }
}

fn found<T>(result: Option<T>) -> Result<T, PipelineError> {
    result.ok_or_else(|| device_failure("a result of a benchmark is missing"))
}

impl Layer {
    /// A layer `[d_in, d_out]` with adapters of these ranks, which share `rows` evenly. Needs an
    /// adapter, and a row for each.
    pub(crate) fn new(
        [rows, d_in, d_out]: [usize; 3],
        ranks: &[usize],
        dropout: f64,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, PipelineError> {
        let device = &device.clone().without_autodiff();
        let random = |shape: [usize; 2], dtype: FloatDType| {
            let uniform = Distribution::Uniform(-0.2, 0.2);
            Tensor::<2>::random(shape, uniform, (device, DType::from(dtype)))
        };
        let mut bank = AdapterBank::new(d_in, d_out, 0, device);
        let (mut parts, mut segments) = (Vec::new(), Vec::new());
        for (slot, &rank) in ranks.iter().enumerate() {
            let spec = LoraSpec::new(rank, 2.0 * rank as f64).with_lora_dropout(dropout);
            let weights = LoraPair {
                a: random([rank, d_in], FloatDType::F32),
                b: random([rank, d_out], FloatDType::F32),
                magnitude: None,
            };
            bank.push(Some(AdapterState::new(spec, weights.clone())?))?;
            let rows = slot * rows / ranks.len()..(slot + 1) * rows / ranks.len();
            segments.push(Segment {
                rows: rows.clone(),
                slot,
            });
            parts.push(Part {
                rows,
                weights,
                scale: spec.scale(),
            });
        }
        let draws = vec![DropoutDraw { seed: 1, step: 1 }; ranks.len()];
        let segments = Segments::new(rows, segments)?;
        let routing = bank.route(&segments, Some(&draws))?;
        let nothing = || BatchLoraError::InvalidConfig("no adapter has a row".into());
        Ok(Self {
            x: random([rows, d_in], dtype),
            // As it is loaded: a transposed view of [d_out, d_in].
            weight: random([d_out, d_in], dtype).transpose().into(),
            gradient: random([rows, d_out], dtype),
            parts,
            lora: bank.attach(&segments, Some(&draws))?.ok_or_else(nothing)?,
            packed: bank.weights().ok_or_else(nothing)?,
            narrow: random([rows, routing.rank_max()], FloatDType::F32),
            routing,
            expanded: RefCell::new(Some(random([rows, d_out], dtype))),
            dropout,
        })
    }

    /// With random weights in NF4, with nested scales. `composed` makes them dense in every pass.
    pub(crate) fn in_nf4(self) -> Self {
        let [d_in, d_out] = self.weight.dims();
        let dtype: FloatDType = self.weight.dtype().into();
        let weight = Nf4::random([d_out, d_in], dtype, true);
        Self {
            weight: FrozenWeight::from_nf4(&weight, dtype, &self.x.device()),
            ..self
        }
    }

    /// Runs one way to compute the layer, or one of its kernels, and returns all results.
    pub(crate) fn run(&self, kernel: Kernel) -> Result<Vec<Tensor<2>>, PipelineError> {
        let (routing, LoraPair { a, b, .. }) = (&self.routing, self.packed.clone());
        let (x, narrow, gradient) = (self.x.clone(), self.narrow.clone(), self.gradient.clone());
        Ok(match kernel {
            Kernel::Frozen => self.frozen()?.results(),
            Kernel::Composed => self.composed()?.results(),
            Kernel::Fused => self.fused()?.results(),
            Kernel::Shrink => vec![primitives::shrink(x, a, routing, Side::Input)],
            Kernel::ExpandAdd => {
                // Taken out, so that this is the only reference: otherwise the kernel would write to a copy.
                let wide = found(self.expanded.take())?;
                let wide = primitives::expand_add(wide, narrow, b, routing, Side::Output);
                self.expanded.replace(Some(wide.clone()));
                vec![wide]
            }
            Kernel::WeightGrad => {
                vec![primitives::weight_grad(x, narrow, routing, Side::Input)]
            }
            Kernel::OutputGrads => {
                let (ds, db) = primitives::output_grads(gradient, narrow, b, routing);
                vec![ds, db]
            }
        })
    }

    /// The products with the frozen weight alone.
    fn frozen(&self) -> Result<Pass, PipelineError> {
        let x = self.x.clone().autodiff().require_grad();
        let output = frozen_linear(x.clone(), self.weight.clone());
        let mut gradients = seed_gradient(output.clone(), self.gradient.clone()).backward();
        Ok(Pass {
            output,
            input_gradient: found(x.grad_remove(&mut gradients))?,
            adapters: Vec::new(),
        })
    }

    /// batchlora's operator.
    fn fused(&self) -> Result<Pass, PipelineError> {
        let lora = self.lora.clone().require_grad();
        let x = self.x.clone().autodiff().require_grad();
        let output = lora.forward(x.clone(), self.weight.clone())?;
        let mut gradients = seed_gradient(output.clone(), self.gradient.clone()).backward();
        Ok(Pass {
            output,
            input_gradient: found(x.grad_remove(&mut gradients))?,
            adapters: vec![found(lora.take_gradient(&mut gradients))?],
        })
    }

    /// Plain Burn: one product with the frozen weight, then adapter by adapter.
    fn composed(&self) -> Result<Pass, PipelineError> {
        let ([_, d_in], [_, d_out]) = (self.x.dims(), self.gradient.dims());
        let x = self.x.clone().autodiff().require_grad();
        let base = x.clone().matmul(self.weight.dense());
        let (mut outputs, mut leaves) = (Vec::new(), Vec::new());
        for part in &self.parts {
            let leaf = |tensor: &Tensor<2>| tensor.clone().autodiff().require_grad();
            let (a, b) = (leaf(&part.weights.a), leaf(&part.weights.b));
            let input = self.drop_out(x.clone().slice([part.rows.clone(), 0..d_in]));
            let dtype = input.dtype();
            let narrow = input.matmul(a.clone().cast(dtype).transpose());
            let wide = narrow.matmul(b.clone().cast(dtype)).mul_scalar(part.scale);
            outputs.push(base.clone().slice([part.rows.clone(), 0..d_out]) + wide);
            leaves.push((a, b));
        }
        let output = Tensor::cat(outputs, 0);
        let mut gradients = seed_gradient(output.clone(), self.gradient.clone()).backward();
        let input_gradient = found(x.grad_remove(&mut gradients))?;
        let mut gradient = |leaf: &Tensor<2>| found(leaf.grad_remove(&mut gradients));
        let adapters = leaves.iter().map(|(a, b)| {
            Ok(LoraPair {
                a: gradient(a)?,
                b: gradient(b)?,
                magnitude: None,
            })
        });
        let adapters = adapters.collect::<Result<_, PipelineError>>()?;
        Ok(Pass {
            output,
            input_gradient,
            adapters,
        })
    }

    fn drop_out(&self, x: Tensor<2>) -> Tensor<2> {
        if self.dropout <= 0.0 {
            return x;
        }
        let kept = 1.0 - self.dropout;
        let options = (&self.x.device(), self.x.dtype());
        let mask = Tensor::<2>::random(x.dims(), Distribution::Bernoulli(kept), options);
        x * mask.div_scalar(kept)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType, Tensor};
    use loraloom_model::to_host;

    use super::{FrozenWeight, Kernel, Layer, Pass};

    fn assert_close(what: &str, found: Tensor<2>, expected: Tensor<2>) {
        let [found, expected] = [found, expected].map(|tensor| to_host(tensor).unwrap());
        assert_eq!(found.len(), expected.len(), "{what}");
        let largest = expected.iter().fold(0f32, |max, v| max.max(v.abs()));
        assert!(largest > 0.0, "{what} is zero");
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (found - expected).abs() <= 1e-5 * largest,
                "{what}: {found} {expected}"
            );
        }
    }

    fn packed(pass: Pass) -> [Tensor<2>; 4] {
        let (a, b) = pass
            .adapters
            .into_iter()
            .map(|pair| (pair.a, pair.b))
            .unzip();
        [
            pass.output.without_autodiff(),
            pass.input_gradient,
            Tensor::cat(a, 0),
            Tensor::cat(b, 0),
        ]
    }

    fn layer() -> Layer {
        let (shape, device) = ([13, 24, 40], Device::flex());
        Layer::new(shape, &[4, 8, 2], 0.0, FloatDType::F32, &device).unwrap()
    }

    #[test]
    fn all_ways_compute_the_same() {
        assert_same(&layer());
    }

    #[test]
    fn all_ways_compute_the_same_over_nf4() {
        let layer = layer().in_nf4();
        assert!(matches!(layer.weight, FrozenWeight::Nf4(_)));
        assert_same(&layer);
    }

    fn assert_same(layer: &Layer) {
        let (fused, composed) = (
            packed(layer.fused().unwrap()),
            packed(layer.composed().unwrap()),
        );
        let names = ["output", "dX", "dA", "dB"];
        for ((name, fused), composed) in names.into_iter().zip(fused).zip(composed) {
            assert_close(name, fused, composed);
        }
        let frozen = layer.frozen().unwrap();
        let product = layer.x.clone().matmul(layer.weight.dense());
        assert_close("x W", frozen.output.without_autodiff(), product);
        let product = layer
            .gradient
            .clone()
            .matmul(layer.weight.dense().transpose());
        assert_close("dH Wᵀ", frozen.input_gradient, product);
    }

    #[test]
    fn kernels_compute_what_their_names_say() {
        let layer = Layer::new([13, 24, 40], &[4], 0.0, FloatDType::F32, &Device::flex()).unwrap();
        let (x, gradient, narrow) = (&layer.x, &layer.gradient, &layer.narrow);
        let (a, b) = (&layer.packed.a, &layer.packed.b);
        let scale = layer.parts[0].scale;
        let run = |kernel| layer.run(kernel).unwrap();
        let product = |left: &Tensor<2>, right: &Tensor<2>| left.clone().matmul(right.clone());
        let transposed = |tensor: &Tensor<2>| tensor.clone().transpose();
        let shrunk = run(Kernel::Shrink).remove(0);
        assert_close("S", shrunk, product(x, &transposed(a)));
        let grad = run(Kernel::WeightGrad).remove(0);
        assert_close("dA", grad, product(&transposed(narrow), x));
        let [ds, db] = run(Kernel::OutputGrads).try_into().unwrap();
        assert_close("dS", ds, product(gradient, &transposed(b)) * scale);
        assert_close("dB", db, product(&transposed(narrow), gradient) * scale);
        let before = layer.expanded.borrow().clone().unwrap();
        let added = product(narrow, b) * scale;
        for times in [1.0, 2.0] {
            let found = run(Kernel::ExpandAdd).remove(0);
            let expected = before.clone() + added.clone() * times;
            assert_close("H", found, expected);
        }
    }

    #[test]
    fn dropout_drops_what_it_says_and_scales_the_rest() {
        let layer = Layer::new([64, 64, 8], &[4], 0.25, FloatDType::F32, &Device::flex()).unwrap();
        let ones = to_host(layer.drop_out(layer.x.ones_like())).unwrap();
        let dropped = ones.iter().filter(|value| value.abs() < 0.5).count();
        // 4096 draws: five deviations either way.
        assert!((dropped as f64 - 1024.0).abs() < 140.0, "{dropped} of 4096");
        let scaled = |value: f32| value.abs() < 1e-6 || (value - 4.0 / 3.0).abs() < 1e-6;
        assert!(ones.into_iter().all(scaled));
    }
}
