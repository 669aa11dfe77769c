use batchlora::{AdapterState, LoraPair, LoraSpec};
use burn::tensor::Tensor;
use loraloom_model::{LayerAdapter, LlamaConfig, Projection};

/// The parts of an adapter at a stage's layers.
pub(in crate::remote) type Specs = Vec<[Option<LoraSpec>; Projection::COUNT]>;

/// Tensors of one part, and those of its magnitude.
const PART: usize = 6;
const MAGNITUDE: usize = 3;

/// Splits an adapter into specifications and tensors: layer by layer, of each part weights, first
/// moments and second moments, A before B before the magnitude. An adapter that has not trained yet has no magnitudes.
pub(in crate::remote) fn take_apart(adapter: Vec<LayerAdapter>) -> (Specs, Vec<Tensor<2>>) {
    let mut tensors = Vec::new();
    let specs = adapter.into_iter().map(|layer| {
        layer.map(|part| {
            let part = part?;
            for pair in [part.weights, part.first_moment, part.second_moment] {
                tensors.extend([pair.a, pair.b]);
                tensors.extend(pair.magnitude);
            }
            Some(part.spec)
        })
    });
    (specs.collect(), tensors)
}

/// Reverses [`take_apart`]; `None` if the number of tensors does not fit the parts.
pub(in crate::remote) fn put_together(
    specs: &Specs,
    tensors: Vec<Tensor<2>>,
) -> Option<Vec<LayerAdapter>> {
    let parts = || specs.iter().flatten().flatten();
    let without = PART * parts().count();
    let with = without + MAGNITUDE * parts().filter(|spec| spec.use_dora).count();
    let has_magnitudes = tensors.len() == with;
    if tensors.len() != without && !has_magnitudes {
        return None;
    }
    let mut tensors = tensors.into_iter();
    let mut pair = |spec: LoraSpec| {
        let (a, b) = (tensors.next()?, tensors.next()?);
        let magnitude = if has_magnitudes && spec.use_dora {
            Some(tensors.next()?)
        } else {
            None
        };
        Some(LoraPair { a, b, magnitude })
    };
    let mut part = |spec: LoraSpec| {
        Some(AdapterState {
            spec,
            weights: pair(spec)?,
            first_moment: pair(spec)?,
            second_moment: pair(spec)?,
        })
    };
    let mut adapter = Vec::with_capacity(specs.len());
    for layer in specs {
        let mut parts = LayerAdapter::default();
        for (slot, spec) in parts.iter_mut().zip(layer) {
            if let Some(spec) = spec {
                *slot = Some(part(*spec)?);
            }
        }
        adapter.push(parts);
    }
    Some(adapter)
}

/// The shapes of a stage's adapter's tensors in the order of [`take_apart`].
pub(in crate::remote) fn shapes(specs: &Specs, config: &LlamaConfig) -> Vec<[usize; 2]> {
    let parts = specs
        .iter()
        .flat_map(|layer| layer.iter().zip(Projection::ALL));
    parts
        .filter_map(|(spec, projection)| Some((spec.as_ref()?, config.linear(projection)?)))
        .flat_map(|(spec, linear)| {
            let mut pair = vec![[spec.r, linear.d_in], [spec.r, linear.d_out]];
            pair.extend(spec.use_dora.then_some([1, linear.d_out]));
            pair.repeat(PART / 2)
        })
        .collect()
}
