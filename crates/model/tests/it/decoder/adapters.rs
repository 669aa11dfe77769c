//! Banks of a whole layer, and adapters on their way between PEFT and a device.

use batchlora::{AdapterBank, AdapterState, BatchLoraError, LoraPair, LoraSpec};
use loraloom_model::{
    LayerAdapter, LayerBanks, LayerGradients, LlamaConfig, LoraWeights, Projection,
};

use crate::decoder::support::{Random, config, device, host};

fn adapter(
    random: &mut Random,
    config: &LlamaConfig,
    r: usize,
    chosen: &[Projection],
) -> LayerAdapter {
    Projection::ALL.map(|projection| {
        let shape = config.linear(projection)?;
        let weights = || LoraPair {
            a: random.tensor([r, shape.d_in], &device()),
            b: random.tensor([r, shape.d_out], &device()),
            magnitude: None,
        };
        let chosen = chosen.contains(&projection);
        chosen.then(weights).map(|weights| {
            AdapterState::new(LoraSpec::new(r, 2.0), weights).expect("a valid adapter")
        })
    })
}

fn values(adapter: &LayerAdapter) -> Vec<Option<[Vec<f32>; 2]>> {
    let weights = adapter
        .iter()
        .map(|state| state.as_ref().map(|state| state.weights.clone()));
    weights
        .map(|weights| weights.map(|pair| [host(pair.a), host(pair.b)]))
        .collect()
}

#[test]
fn a_slot_is_the_same_task_in_all_banks() {
    use Projection::{Down, K, Q, V};
    let config = config("llama-gqa");
    let mut random = Random::new(1);
    let ranks_and_places = [(3, &[Q, V][..]), (2, &[]), (5, &[V, Down])];
    let adapters: Vec<_> = ranks_and_places
        .into_iter()
        .map(|(r, chosen)| adapter(&mut random, &config, r, chosen))
        .collect();
    let mut banks = LayerBanks::new(&config, 0, &device());
    for (slot, adapter) in adapters.iter().enumerate() {
        assert_eq!(banks.push(adapter.clone()), Ok(slot));
    }
    let ranks = |banks: &LayerBanks| [Q, K, V, Down].map(|p| banks.bank(p).rank_sum());
    assert_eq!(ranks(&banks), [3, 0, 8, 5]);
    assert!(
        Projection::ALL
            .iter()
            .all(|&p| banks.bank(p).num_slots() == 3)
    );
    for (slot, adapter) in adapters.iter().enumerate() {
        assert_eq!(
            values(&banks.extract(slot).expect("a slot")),
            values(adapter)
        );
    }
    assert_eq!(
        values(&banks.remove(0).expect("a slot")),
        values(&adapters[0])
    );
    assert_eq!(
        values(&banks.remove(0).expect("a slot")),
        values(&adapters[1])
    );
    assert_eq!(
        values(&banks.extract(0).expect("a slot")),
        values(&adapters[2])
    );
    assert_eq!(ranks(&banks), [0, 0, 5, 5]);
    let missing = BatchLoraError::NoSuchSlot { slot: 1, slots: 1 };
    assert_eq!(banks.extract(1).err(), Some(missing.clone()));
    assert_eq!(banks.remove(1).err(), Some(missing));
}

#[test]
fn the_banks_are_those_of_the_layers_projections() {
    let config = config("qwen3");
    let banks = LayerBanks::new(&config, 1, &device());
    for projection in Projection::ALL {
        let mut modules = config.modules(1).into_iter();
        let linear = modules.find(|module| module.projection == projection);
        let shape = linear.map_or([0, 0], |linear| [linear.d_in, linear.d_out]);
        assert_eq!(banks.bank(projection).shape(), shape);
    }
    assert_eq!(config.linears().len(), 7);
}

#[test]
fn gradients_of_micro_batches_add_up() {
    let pair = |value: f32| LoraPair {
        a: burn::tensor::Tensor::full([1, 2], value, &device()),
        b: burn::tensor::Tensor::full([1, 3], 10.0 * value, &device()),
        magnitude: None,
    };
    let gradients = |parts: [Option<f32>; 3]| {
        let mut gradients = LayerGradients::default();
        for (gradient, part) in gradients.0.iter_mut().zip(parts) {
            *gradient = part.map(pair);
        }
        gradients
    };
    let mut sum = gradients([Some(1.0), None, Some(2.0)]);
    sum.accumulate(gradients([Some(4.0), Some(8.0), None]));
    let found = sum
        .0
        .map(|pair| pair.map(|pair| (host(pair.a), host(pair.b))));
    let expected = |value: f32| Some((vec![value; 2], vec![10.0 * value; 3]));
    assert_eq!(found[..3], [expected(5.0), expected(8.0), expected(2.0)]);
    assert!(found[3..].iter().all(Option::is_none));
}

#[test]
fn pefts_weights_survive_the_device() {
    let (r, d_in, d_out) = (3, 5, 4);
    let mut random = Random::new(2);
    let weights = LoraWeights {
        magnitude: None,
        r,
        lora_alpha: 6.0,
        scale: 6.0 / 3f64.sqrt(),
        a: random.values(r * d_in),
        b: random.values(d_out * r),
        d_in,
        d_out,
    };
    let state = weights.to_state(true, 0.25, &device()).expect("valid");
    assert_eq!(
        state.spec,
        LoraSpec::new(3, 6.0)
            .with_use_rslora(true)
            .with_lora_dropout(0.25)
    );
    assert_eq!(state.weights.a.dims(), [r, d_in]);
    assert_eq!(state.weights.b.dims(), [r, d_out]);
    // PEFT's element [out, rank] is the bank's [rank, out].
    let b = host(state.weights.b.clone());
    assert_eq!(b[2 * d_out + 1].to_bits(), weights.b[r + 2].to_bits());
    assert_eq!(LoraWeights::from_state(&state).expect("readable"), weights);

    let mut bank = AdapterBank::new(d_in, d_out, 0, &device());
    bank.push(Some(state)).expect("fits");
    let state = bank.extract(0).expect("a slot").expect("an adapter");
    assert_eq!(LoraWeights::from_state(&state).expect("readable"), weights);
}
