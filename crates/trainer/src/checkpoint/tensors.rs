//! An adapter with its optimizer state as a safetensors file, bit for bit.

use std::borrow::Cow;

use batchlora::{AdapterState, LoraPair, LoraSpec};
use burn::tensor::{Device, Tensor, TensorData};
use loraloom_model::{MatrixView, Projection, to_host};
use safetensors::{Dtype, SafeTensors};

use super::{
    ExactF64,
    record::{ModuleRecord, Modules},
};
use crate::{
    TrainerError,
    adapter::{ModelAdapter, by_projection},
    error::Result,
};

/// Prefixes of a module's path: its weights, its moments under torch's names, and its start values.
const WEIGHTS: &str = "";
const FIRST_MOMENT: &str = "exp_avg.";
const SECOND_MOMENT: &str = "exp_avg_sq.";
const INITIAL: &str = "initial.";

/// Of an adapter with DoRA that has begun.
const MAGNITUDE: &str = "lora_magnitude_vector";

type NamedMatrix = (String, MatrixView<'static>);

/// The file of an adapter, and the data of its modules that are not tensors. Of `initial`, the adapter at its start,
/// only weights are kept.
///
/// # Errors
/// If a tensor cannot be read from its device.
pub(crate) fn encode(
    adapter: ModelAdapter,
    initial: Option<ModelAdapter>,
) -> Result<(Modules, Vec<u8>)> {
    let (mut modules, mut matrices) = (Modules::new(), Vec::new());
    for (module, state) in parts(adapter) {
        for (prefix, pair) in [
            (WEIGHTS, state.weights),
            (FIRST_MOMENT, state.first_moment),
            (SECOND_MOMENT, state.second_moment),
        ] {
            push(&mut matrices, prefix, &module, pair)?;
        }
        let record = ModuleRecord {
            lora_alpha: ExactF64(state.spec.lora_alpha),
            lora_dropout: ExactF64(state.spec.lora_dropout),
            use_rslora: state.spec.use_rslora,
            freeze_a: state.spec.freeze_a,
            use_dora: state.spec.use_dora,
            frozen_ranks: state.spec.frozen_ranks,
        };
        modules.insert(module, record);
    }
    for (module, state) in initial.into_iter().flat_map(parts) {
        push(&mut matrices, INITIAL, &module, state.weights)?;
    }
    let file = safetensors::serialize(matrices, None);
    let file = file.map_err(|error| TrainerError::Checkpoint {
        problem: error.to_string(),
    })?;
    Ok((modules, file))
}

/// The adapter of a file, over `layers` decoder layers, and its start values if the file has them, in host memory.
///
/// # Errors
/// A message with the mismatch.
pub(super) fn decode(
    file: &[u8],
    modules: &Modules,
    layers: usize,
) -> Result<(ModelAdapter, Option<ModelAdapter>), String> {
    let tensors = SafeTensors::deserialize(file).map_err(|error| error.to_string())?;
    let mut found = 0;
    let adapter = by_projection(layers, |layer, projection| {
        let module = projection.module(layer);
        let Some(record) = modules.get(&module) else {
            return Ok(None);
        };
        found += 1;
        Ok::<_, String>(Some(AdapterState {
            first_moment: pair(&tensors, FIRST_MOMENT, &module)?,
            second_moment: pair(&tensors, SECOND_MOMENT, &module)?,
            ..state(&tensors, WEIGHTS, &module, record)?
        }))
    })?;
    let mut begun = false;
    let initial = by_projection(layers, |layer, projection| {
        let module = projection.module(layer);
        let record = modules.get(&module);
        let is_there = |_: &_| tensors.tensor(&name(INITIAL, &module, "lora_A")).is_ok();
        let Some(record) = record.filter(is_there) else {
            return Ok(None);
        };
        begun = true;
        state(&tensors, INITIAL, &module, record).map(Some)
    })?;
    if found != modules.len() {
        return Err(format!(
            "{} modules are not in {layers} layers",
            modules.len() - found
        ));
    }
    Ok((adapter, begun.then_some(initial)))
}

/// An adapter's parts with their modules' paths.
fn parts(adapter: ModelAdapter) -> impl Iterator<Item = (String, AdapterState)> {
    adapter.into_iter().enumerate().flat_map(|(layer, states)| {
        let parts = Projection::ALL.into_iter().zip(states);
        parts.filter_map(move |(projection, state)| Some((projection.module(layer), state?)))
    })
}

fn name(prefix: &str, module: &str, factor: &str) -> String {
    format!("{prefix}{module}.{factor}")
}

fn push(matrices: &mut Vec<NamedMatrix>, prefix: &str, module: &str, pair: LoraPair) -> Result<()> {
    let magnitude = pair.magnitude.map(|norms| (MAGNITUDE, norms));
    let factors = [("lora_A", pair.a), ("lora_B", pair.b)];
    for (factor, tensor) in factors.into_iter().chain(magnitude) {
        let view = MatrixView {
            shape: tensor.dims(),
            values: Cow::Owned(to_host(tensor)?),
        };
        matrices.push((name(prefix, module, factor), view));
    }
    Ok(())
}

/// The state of a module before its first step, with the weights under `prefix`; [`WEIGHTS`] give its rank.
fn state(
    tensors: &SafeTensors<'_>,
    prefix: &str,
    module: &str,
    record: &ModuleRecord,
) -> Result<AdapterState, String> {
    let a = tensors.tensor(&name(WEIGHTS, module, "lora_A"));
    let a = a.map_err(|error| error.to_string())?;
    let r = a.shape().first().copied().unwrap_or(0);
    let spec = LoraSpec::new(r, record.lora_alpha.0)
        .with_use_rslora(record.use_rslora)
        .with_lora_dropout(record.lora_dropout.0)
        .with_freeze_a(record.freeze_a)
        .with_use_dora(record.use_dora)
        .with_frozen_ranks(record.frozen_ranks);
    AdapterState::new(spec, pair(tensors, prefix, module)?)
        .map_err(|error| format!("{module}: {error}"))
}

fn pair(tensors: &SafeTensors<'_>, prefix: &str, module: &str) -> Result<LoraPair, String> {
    let host = Device::flex().without_autodiff();
    let tensor = |factor| {
        let name = name(prefix, module, factor);
        let view = tensors.tensor(&name).map_err(|error| error.to_string())?;
        let &[rows, columns] = view.shape() else {
            return Err(format!("{name} has shape {:?}", view.shape()));
        };
        if view.dtype() != Dtype::F32 {
            return Err(format!("{name} is {:?}", view.dtype()));
        }
        let (words, _) = view.data().as_chunks();
        let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        let data = TensorData::new(values, [rows, columns]);
        Ok(Tensor::<2>::from_data(data, &host))
    };
    Ok(LoraPair {
        a: tensor("lora_A")?,
        b: tensor("lora_B")?,
        magnitude: if tensors.tensor(&name(prefix, module, MAGNITUDE)).is_ok() {
            Some(tensor(MAGNITUDE)?)
        } else {
            None
        },
    })
}

#[cfg(test)]
mod tests {
    use batchlora::{AdapterState, LoraPair, LoraSpec};
    use burn::tensor::{Device, Tensor, TensorData};
    use loraloom_model::{LayerAdapter, Projection, to_host};

    use super::{decode, encode, parts};

    fn tensor(first: u32, shape: [usize; 2]) -> Tensor<2> {
        let words = (0..(shape[0] * shape[1]) as u32).map(|index| first.wrapping_add(index * 9973));
        let values: Vec<f32> = words.map(f32::from_bits).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    fn state(first: u32, r: usize) -> AdapterState {
        let pair = |first| LoraPair {
            a: tensor(first, [r, 6]),
            b: tensor(first ^ 0x8000_0000, [r, 4]),
            magnitude: (r == 5).then(|| tensor(first + 5, [1, 4])),
        };
        let spec = LoraSpec::new(r, 0.1 + 0.2)
            .with_use_rslora(r == 2)
            .with_lora_dropout(0.1)
            .with_freeze_a(r == 5)
            .with_use_dora(r == 5)
            .with_frozen_ranks(r / 2);
        let weights = AdapterState::new(spec, pair(first)).expect("a state");
        AdapterState {
            first_moment: pair(first + 77),
            // Includes subnormal numbers.
            second_moment: pair(1),
            ..weights
        }
    }

    fn bits(state: &AdapterState) -> Vec<u32> {
        let pairs = [&state.weights, &state.first_moment, &state.second_moment];
        let tensors = pairs
            .into_iter()
            .flat_map(|pair| [&pair.a, &pair.b].into_iter().chain(&pair.magnitude));
        let values = tensors.flat_map(|tensor| to_host(tensor.clone()).expect("values"));
        values.map(f32::to_bits).collect()
    }

    #[test]
    fn an_adapter_comes_back_with_its_bits() {
        let mut adapter = vec![LayerAdapter::default(); 3];
        adapter[0][Projection::Q as usize] = Some(state(0x3f80_0000, 2));
        adapter[2][Projection::Down as usize] = Some(state(0xbf12_3456, 5));
        let mut initial = vec![LayerAdapter::default(); 3];
        initial[0][Projection::Q as usize] = Some(state(0x3000_0001, 2));

        let (modules, file) = encode(adapter.clone(), None).expect("a file");
        let (found, began) = decode(&file, &modules, 3).expect("an adapter");
        assert!(began.is_none());
        let (first, second): (Vec<_>, Vec<_>) =
            (parts(adapter.clone()).collect(), parts(found).collect());
        assert_eq!(first.len(), 2);
        for ((module, before), (found, after)) in first.iter().zip(&second) {
            assert_eq!((module, before.spec), (found, after.spec));
            assert_eq!(bits(before), bits(after), "{module}");
        }

        let (modules, file) = encode(adapter, Some(initial.clone())).expect("a file");
        let (_, began) = decode(&file, &modules, 3).expect("an adapter");
        let began = began.expect("what it began from");
        let (_, state) = parts(began).next().expect("a module");
        let (_, before) = parts(initial).next().expect("a module");
        let weights = |state: AdapterState| to_host(state.weights.a).expect("values");
        assert_eq!(weights(state), weights(before));

        let missing = decode(&file, &modules, 2).expect_err("a layer is missing");
        assert_eq!(missing, "1 modules are not in 2 layers");
        assert!(decode(&file[..9], &modules, 3).is_err());
    }
}
