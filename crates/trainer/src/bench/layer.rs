//! One adapted layer with random operands, computed in every way there is.

use std::{cell::RefCell, ops::Range};

use batchlora::{
    AdapterBank, AdapterState, BatchLora, BatchLoraError, DropoutDraw, LoraPair, LoraSpec, Routing,
    Segment, Segments, frozen_linear,
    primitives::{self, Side},
    seed_gradient,
};
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};

use super::report::Rung;
use crate::TrainerError;

/// An adapter's share of the batch.
#[derive(Debug)]
struct Part {
    rows: Range<usize>,
    weights: LoraPair,
    scale: f64,
}

/// An adapted layer, its input and the gradient of its output.
#[derive(Debug)]
pub(super) struct Layer {
    x: Tensor<2>,
    weight: Tensor<2>,
    gradient: Tensor<2>,
    parts: Vec<Part>,
    lora: BatchLora,
    routing: Routing,
    packed: LoraPair,
    /// A product of rank r, `[rows, rank_max]`.
    narrow: Tensor<2>,
    /// What `expand_add` adds to in place, `[rows, d_out]`.
    expanded: RefCell<Option<Tensor<2>>>,
    dropout: f64,
}

/// What a forward and backward leaves.
#[derive(Debug)]
struct Pass {
    /// `[rows, d_out]`.
    output: Tensor<2>,
    /// `[rows, d_in]`.
    input_gradient: Option<Tensor<2>>,
    /// Of all adapters packed, or of each adapter.
    adapters: Vec<Option<LoraPair>>,
}

impl Pass {
    /// Everything that was computed; `None` is what should have been.
    fn results(&self) -> Vec<Option<Tensor<2>>> {
        let mut results = vec![Some(self.output.clone()), self.input_gradient.clone()];
        for pair in &self.adapters {
            results.push(pair.as_ref().map(|pair| pair.a.clone()));
            results.push(pair.as_ref().map(|pair| pair.b.clone()));
        }
        results
    }
}

impl Layer {
    /// A layer `[d_in, d_out]` with adapters of these ranks, which share `rows` evenly. There must
    /// be an adapter, and a row for each.
    pub(super) fn new(
        [rows, d_in, d_out]: [usize; 3],
        ranks: &[usize],
        dropout: f64,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, TrainerError> {
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
            weight: random([d_out, d_in], dtype).transpose(),
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

    /// Computes it this way, or one of its kernels; everything that came out, `None` where something
    /// should have.
    pub(super) fn run(&self, rung: Rung) -> Result<Vec<Option<Tensor<2>>>, TrainerError> {
        let (routing, LoraPair { a, b }) = (&self.routing, self.packed.clone());
        let (narrow, gradient) = (self.narrow.clone(), self.gradient.clone());
        Ok(match rung {
            Rung::Frozen => self.frozen().results(),
            Rung::Composed => self.composed().results(),
            Rung::Fused => self.fused()?.results(),
            Rung::Shrink => {
                let narrow = primitives::shrink(self.x.clone(), a, routing, Side::Input);
                vec![Some(narrow)]
            }
            Rung::ExpandAdd => {
                // Held by nobody else meanwhile: else the kernel would write to a copy.
                let wide = self.expanded.take();
                let wide =
                    wide.map(|wide| primitives::expand_add(wide, narrow, b, routing, Side::Output));
                self.expanded.replace(wide.clone());
                vec![wide]
            }
            Rung::WeightGrad => {
                let grad = primitives::weight_grad(self.x.clone(), narrow, routing, Side::Input);
                vec![Some(grad)]
            }
            Rung::OutputGrads => {
                let (ds, db) = primitives::output_grads(gradient, narrow, b, routing);
                vec![Some(ds), Some(db)]
            }
        })
    }

    /// The products with the frozen weight alone.
    fn frozen(&self) -> Pass {
        let x = self.x.clone().autodiff().require_grad();
        let output = frozen_linear(x.clone(), self.weight.clone());
        let mut gradients = seed_gradient(output.clone(), self.gradient.clone()).backward();
        Pass {
            output,
            input_gradient: x.grad_remove(&mut gradients),
            adapters: Vec::new(),
        }
    }

    /// batchlora's operator.
    fn fused(&self) -> Result<Pass, TrainerError> {
        let lora = self.lora.clone().require_grad();
        let x = self.x.clone().autodiff().require_grad();
        let output = lora.forward(x.clone(), self.weight.clone())?;
        let mut gradients = seed_gradient(output.clone(), self.gradient.clone()).backward();
        Ok(Pass {
            output,
            input_gradient: x.grad_remove(&mut gradients),
            adapters: vec![lora.take_gradient(&mut gradients)],
        })
    }

    /// What a user of Burn writes: one product with the frozen weight, then adapter by adapter.
    fn composed(&self) -> Pass {
        let ([_, d_in], [_, d_out]) = (self.x.dims(), self.gradient.dims());
        let x = self.x.clone().autodiff().require_grad();
        let base = x.clone().matmul(self.weight.clone());
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
        let input_gradient = x.grad_remove(&mut gradients);
        let adapters = leaves.iter().map(|(a, b)| {
            let (a, b) = (a.grad_remove(&mut gradients), b.grad_remove(&mut gradients));
            a.zip(b).map(|(a, b)| LoraPair { a, b })
        });
        Pass {
            output,
            input_gradient,
            adapters: adapters.collect(),
        }
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

/// What is timed as the same computation is the same computation.
#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType, Tensor};
    use loraloom_model::to_host;

    use super::{Layer, Pass, Rung};

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
        let pairs: Vec<_> = pass.adapters.into_iter().map(Option::unwrap).collect();
        let a = pairs.iter().map(|pair| pair.a.clone()).collect();
        let b = pairs.iter().map(|pair| pair.b.clone()).collect();
        let input = pass.input_gradient.unwrap();
        [
            pass.output.without_autodiff(),
            input,
            Tensor::cat(a, 0),
            Tensor::cat(b, 0),
        ]
    }

    #[test]
    fn all_ways_compute_the_same() {
        let layer = Layer::new(
            [13, 24, 40],
            &[4, 8, 2],
            0.0,
            FloatDType::F32,
            &Device::flex(),
        );
        let layer = layer.unwrap();
        let (fused, composed) = (packed(layer.fused().unwrap()), packed(layer.composed()));
        let names = ["output", "dX", "dA", "dB"];
        for ((name, fused), composed) in names.into_iter().zip(fused).zip(composed) {
            assert_close(name, fused, composed);
        }
        let frozen = layer.frozen();
        let product = layer.x.clone().matmul(layer.weight.clone());
        assert_close("x W", frozen.output.without_autodiff(), product);
        let product = layer
            .gradient
            .clone()
            .matmul(layer.weight.clone().transpose());
        assert_close("dH Wᵀ", frozen.input_gradient.unwrap(), product);
    }

    #[test]
    fn kernels_compute_what_their_names_say() {
        let layer = Layer::new([13, 24, 40], &[4], 0.0, FloatDType::F32, &Device::flex()).unwrap();
        let (x, gradient, narrow) = (&layer.x, &layer.gradient, &layer.narrow);
        let (a, b) = (&layer.packed.a, &layer.packed.b);
        let scale = layer.parts[0].scale;
        let run = |rung| -> Vec<_> {
            layer
                .run(rung)
                .unwrap()
                .into_iter()
                .map(Option::unwrap)
                .collect()
        };
        let product = |left: &Tensor<2>, right: &Tensor<2>| left.clone().matmul(right.clone());
        let turned = |tensor: &Tensor<2>| tensor.clone().transpose();
        let shrunk = run(Rung::Shrink).remove(0);
        assert_close("S", shrunk, product(x, &turned(a)));
        let grad = run(Rung::WeightGrad).remove(0);
        assert_close("dA", grad, product(&turned(narrow), x));
        let [ds, db] = run(Rung::OutputGrads).try_into().unwrap();
        assert_close("dS", ds, product(gradient, &turned(b)) * scale);
        assert_close("dB", db, product(&turned(narrow), gradient) * scale);
        let before = layer.expanded.borrow().clone().unwrap();
        let added = product(narrow, b) * scale;
        for times in [1.0, 2.0] {
            let found = run(Rung::ExpandAdd).remove(0);
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
