use batchlora::{AdapterState, LoraPair, LoraSpec};
use burn::tensor::Tensor;
use loraloom_model::{LayerAdapter, LlamaConfig, Projection};

/// The parts of an adapter at a stage's layers.
pub(in crate::remote) type Specs = Vec<[Option<LoraSpec>; Projection::COUNT]>;

/// Tensors of one part.
const PART: usize = 6;

/// Splits an adapter into specifications and tensors: layer by layer, of each part weights, first
/// moments and second moments, A before B.
pub(in crate::remote) fn take_apart(adapter: Vec<LayerAdapter>) -> (Specs, Vec<Tensor<2>>) {
    let mut tensors = Vec::new();
    let specs = adapter.into_iter().map(|layer| {
        layer.map(|part| {
            let part = part?;
            for pair in [part.weights, part.first_moment, part.second_moment] {
                tensors.extend([pair.a, pair.b]);
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
    if tensors.len() != PART * specs.iter().flatten().flatten().count() {
        return None;
    }
    let mut tensors = tensors.into_iter();
    let mut pair = || {
        let (a, b) = (tensors.next()?, tensors.next()?);
        Some(LoraPair { a, b })
    };
    let mut part = |spec: LoraSpec| {
        Some(AdapterState {
            spec,
            weights: pair()?,
            first_moment: pair()?,
            second_moment: pair()?,
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

/// The shapes of an adapter's tensors in the order of [`take_apart`].
pub(in crate::remote) fn shapes(specs: &Specs, config: &LlamaConfig) -> Vec<[usize; 2]> {
    let parts = specs
        .iter()
        .flat_map(|layer| layer.iter().zip(Projection::ALL));
    parts
        .filter_map(|(spec, projection)| Some((spec.as_ref()?.r, config.linear(projection)?)))
        .flat_map(|(r, linear)| [[r, linear.d_in], [r, linear.d_out]].repeat(PART / 2))
        .collect()
}
