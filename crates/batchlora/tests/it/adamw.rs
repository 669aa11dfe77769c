//! The batched optimizer against torch's arithmetic, one slot at a time in double precision.

use batchlora::{
    AdamWStep, AdapterBank, AdapterState, GradientNorms, LearningRates, LoraPair, LoraSpec,
    SlotUpdate,
};
use burn::tensor::Tensor;

use crate::support::{Random, assert_close, bits, device, host, state_bits, tensor, wide};

/// Two layers of one model.
const SHAPES: [[usize; 2]; 2] = [[7, 5], [3, 11]];
const RANKS: [Option<usize>; 5] = [Some(4), None, Some(1), Some(16), Some(2)];

fn banks(ranks: &[Option<usize>]) -> Vec<AdapterBank> {
    let specs: Vec<_> = ranks
        .iter()
        .map(|r| r.map(|r| LoraSpec::new(r, 1.0)))
        .collect();
    let bank = |(seed, shape): (usize, &[usize; 2])| {
        Random::new(seed as u64).bank(&specs, *shape, 0, &device())
    };
    SHAPES.iter().enumerate().map(bank).collect()
}

fn update(slot: usize, step: u64) -> SlotUpdate {
    let [
        learning_rate,
        beta1,
        beta2,
        epsilon,
        weight_decay,
        max_grad_norm,
    ] = [
        [1e-2, 0.9, 0.999, 1e-8, 0.0, 1.0],
        [1.0, 0.5, 0.5, 1.0, 0.5, 1.0],
        [3e-4, 0.8, 0.99, 1e-6, 0.1, 0.0],
        [1e-3, 0.95, 0.9999, 1e-3, 0.01, 100.0],
        [5e-2, 0.0, 0.9, 1e-8, 0.3, 0.05],
    ][slot];
    // A schedule: the learning rate is not the same at every step.
    let rate = learning_rate / (1.0 + step as f64 / 10.0);
    SlotUpdate {
        learning_rates: LearningRates {
            a: rate,
            b: rate * [1.0, 0.5, 16.0, 4.0, 1.0][slot],
            embedding: rate / 8.0,
        },
        beta1,
        beta2,
        epsilon,
        weight_decay,
        max_grad_norm,
        step,
    }
}

fn norms(banks: &[AdapterBank], gradients: &[LoraPair]) -> Tensor<1> {
    let zero = GradientNorms::new(banks[0].num_slots(), &device());
    let pairs = banks.iter().zip(gradients);
    pairs
        .fold(zero, |norms, (bank, gradient)| norms.add(bank, gradient))
        .finish()
}

fn step(banks: &mut [AdapterBank], updates: &[Option<SlotUpdate>], gradients: &[LoraPair]) {
    let step = AdamWStep::new(updates, norms(banks, gradients));
    for (bank, gradient) in banks.iter_mut().zip(gradients) {
        step.apply(bank, gradient.clone());
    }
}

/// Gradients of the two layers for one slot, a function of slot and step alone.
fn slot_gradients(slot: usize, rank: usize, step: u64) -> Vec<LoraPair> {
    let mut random = Random::new(1000 * step + slot as u64);
    let pair = |shape: &[usize; 2]| random.pair(rank, *shape, &device());
    SHAPES.iter().map(pair).collect()
}

/// The same, packed for all slots.
fn gradients(ranks: &[Option<usize>], step: u64) -> Vec<LoraPair> {
    packed(
        ranks
            .iter()
            .enumerate()
            .filter_map(|(slot, rank)| rank.map(|rank| slot_gradients(slot, rank, step))),
    )
}

fn packed(slots: impl Iterator<Item = Vec<LoraPair>>) -> Vec<LoraPair> {
    let slots: Vec<_> = slots.collect();
    let cat = |layer: usize, part: fn(&LoraPair) -> &Tensor<2>| {
        Tensor::cat(
            slots
                .iter()
                .map(|slot| part(&slot[layer]).clone())
                .collect(),
            0,
        )
    };
    (0..SHAPES.len())
        .map(|layer| LoraPair {
            a: cat(layer, |pair| &pair.a),
            b: cat(layer, |pair| &pair.b),
            magnitude: None,
        })
        .collect()
}

/// One slot's parameters and moments, flat over layers and matrices.
#[derive(Debug, Clone)]
struct Reference {
    weights: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
    /// Numbers of elements of A and B of every bank, in the order of the values.
    lengths: Vec<[usize; 2]>,
}

impl Reference {
    fn of(states: &[AdapterState]) -> Self {
        let flat = |part: fn(&AdapterState) -> &LoraPair| {
            states.iter().flat_map(|state| flat(part(state))).collect()
        };
        Self {
            weights: flat(|state| &state.weights),
            first: flat(|state| &state.first_moment),
            second: flat(|state| &state.second_moment),
            lengths: states
                .iter()
                .map(|state| [&state.weights.a, &state.weights.b].map(|t| t.shape().num_elements()))
                .collect(),
        }
    }

    /// `clip_grad_norm_`, then `torch.optim.AdamW`, written as their documentation has them.
    fn step(&mut self, gradient: &[f64], update: &SlotUpdate) {
        let LearningRates { a, b, .. } = update.learning_rates;
        let rates = self.lengths.iter();
        let rates = rates.flat_map(|&[of_a, of_b]| [vec![a; of_a], vec![b; of_b]].concat());
        let rates: Vec<f64> = rates.collect();
        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        let clip = match update.max_grad_norm {
            0.0 => 1.0,
            limit => (limit / (norm + 1e-6)).min(1.0),
        };
        let correction = |beta: f64| 1.0 - beta.powi(update.step as i32);
        for (index, (gradient, rate)) in gradient.iter().zip(rates).enumerate() {
            let gradient = gradient * clip;
            let [weight, first, second] = [&mut self.weights, &mut self.first, &mut self.second]
                .map(|values| &mut values[index]);
            *weight -= rate * update.weight_decay * *weight;
            *first = update.beta1 * *first + (1.0 - update.beta1) * gradient;
            *second = update.beta2 * *second + (1.0 - update.beta2) * gradient * gradient;
            let first = *first / correction(update.beta1);
            let second = *second / correction(update.beta2);
            *weight -= rate * first / (second.sqrt() + update.epsilon);
        }
    }
}

fn flat(pair: &LoraPair) -> Vec<f64> {
    wide(&[host(pair.a.clone()), host(pair.b.clone())].concat())
}

fn states(banks: &[AdapterBank], slot: usize) -> Vec<AdapterState> {
    let states = banks.iter().map(|bank| bank.extract(slot).expect("a slot"));
    states.map(|state| state.expect("an adapter")).collect()
}

fn all_bits(banks: &[AdapterBank], slot: usize) -> Vec<Vec<u32>> {
    states(banks, slot).iter().flat_map(state_bits).collect()
}

#[test]
fn thirty_steps_are_torchs() {
    let mut banks = banks(&RANKS);
    let slots = [0, 2, 3, 4];
    let mut references = slots.map(|slot| Reference::of(&states(&banks, slot)));
    for at in 1..=30 {
        let updates: Vec<_> = (0..5).map(|slot| Some(update(slot, at))).collect();
        step(&mut banks, &updates, &gradients(&RANKS, at));
        for (slot, reference) in slots.into_iter().zip(&mut references) {
            let rank = RANKS[slot].expect("an adapter");
            let gradient = slot_gradients(slot, rank, at);
            let gradient: Vec<_> = gradient.iter().flat_map(flat).collect();
            reference.step(&gradient, &update(slot, at));
        }
    }
    for (slot, reference) in slots.into_iter().zip(references) {
        let found = Reference::of(&states(&banks, slot));
        for (what, found, expected) in [
            ("weights", found.weights, reference.weights),
            ("first moment", found.first, reference.first),
            ("second moment", found.second, reference.second),
        ] {
            let found: Vec<_> = found.into_iter().map(|value| value as f32).collect();
            assert_close(&format!("{what} of slot {slot}"), &found, &expected, 2e-6);
        }
    }
}

/// Slots 0 and 4 clip at every step, 3 never does, 2 is told not to.
#[test]
fn the_steps_above_clip_and_do_not_clip() {
    let banks = banks(&RANKS);
    for at in 1..=30 {
        let norms = host(norms(&banks, &gradients(&RANKS, at)).sqrt());
        assert!(
            norms[0] > 1.0 && norms[4] > 0.05 && norms[3] < 100.0,
            "{norms:?}"
        );
    }
}

#[test]
fn squared_norms_are_those_of_each_slot() {
    // The second has more slots than a cube has units.
    for ranks in [&RANKS[..], &[Some(1); 300]] {
        let banks = banks(ranks);
        let found = host(norms(&banks, &gradients(ranks, 1)));
        let expected: Vec<f64> = ranks
            .iter()
            .enumerate()
            .map(|(slot, rank)| match rank {
                Some(rank) => {
                    let gradient = slot_gradients(slot, *rank, 1);
                    gradient.iter().flat_map(flat).map(|g| g * g).sum()
                }
                None => 0.0,
            })
            .collect();
        assert_close("squared norm", &found, &expected, 1e-6);
        let absent = ranks.iter().position(Option::is_none);
        assert!(absent.is_none_or(|slot| found[slot].to_bits() == 0));
    }
}

/// Random ranks, widths, hyper-parameters and idle slots, two steps each.
#[test]
fn random_banks_are_torchs() {
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let mut draw = |count: usize| {
            let value = f32::midpoint(random.values(1)[0], 1.0);
            ((value * count as f32) as usize).min(count - 1)
        };
        let shape = [1 + draw(300), [1, 4, 16][draw(3)] * (1 + draw(40))];
        let ranks: Vec<Option<usize>> = (0..=draw(6))
            .map(|_| [None, Some(1 + draw(40)), Some(8)][draw(3)])
            .collect();
        let kinds: Vec<usize> = ranks.iter().map(|_| draw(5)).collect();
        let idle: Vec<bool> = ranks.iter().map(|_| draw(4) == 0).collect();
        let mut tensors = Random::new(seed + 1000);
        let specs: Vec<_> = ranks
            .iter()
            .map(|r| r.map(|r| LoraSpec::new(r, 1.0)))
            .collect();
        let mut banks = vec![tensors.bank(&specs, shape, 0, &device())];
        let mut references: Vec<_> = (0..ranks.len())
            .map(|slot| ranks[slot].map(|_| Reference::of(&states(&banks, slot))))
            .collect();
        for at in 1..=2 {
            let updates: Vec<_> = (0..ranks.len())
                .map(|slot| (!idle[slot]).then(|| update(kinds[slot], at)))
                .collect();
            let own: Vec<_> = ranks
                .iter()
                .map(|r| r.map(|r| tensors.pair(r, shape, &device())))
                .collect();
            for (slot, reference) in references.iter_mut().enumerate() {
                if let (Some(reference), Some(pair), Some(update)) =
                    (reference, &own[slot], &updates[slot])
                {
                    reference.step(&flat(pair), update);
                }
            }
            let present: Vec<_> = own.into_iter().flatten().collect();
            let cat = |part: fn(&LoraPair) -> &Tensor<2>| {
                Tensor::cat(present.iter().map(|pair| part(pair).clone()).collect(), 0)
            };
            if !present.is_empty() {
                let gradient = LoraPair {
                    a: cat(|pair| &pair.a),
                    b: cat(|pair| &pair.b),
                    magnitude: None,
                };
                step(&mut banks, &updates, &[gradient]);
            }
        }
        for (slot, reference) in references.into_iter().enumerate() {
            let Some(reference) = reference else { continue };
            let found = Reference::of(&states(&banks, slot));
            for (what, found, expected) in [
                ("weights", found.weights, reference.weights),
                ("first moment", found.first, reference.first),
                ("second moment", found.second, reference.second),
            ] {
                let found: Vec<_> = found.into_iter().map(|value| value as f32).collect();
                let what = format!("seed {seed}, shape {shape:?}: {what} of slot {slot}");
                assert_close(&what, &found, &expected, 1e-5);
            }
        }
    }
}

#[test]
fn a_slot_without_an_update_keeps_every_bit() {
    let mut some = banks(&RANKS);
    let mut all = some.clone();
    let updates: Vec<_> = (0..5).map(|slot| Some(update(slot, 1))).collect();
    let mut fewer = updates.clone();
    fewer[2] = None;
    fewer[4] = None;
    let before = [2, 4].map(|slot| all_bits(&some, slot));
    step(&mut all, &updates, &gradients(&RANKS, 1));
    step(&mut some, &fewer, &gradients(&RANKS, 1));
    assert_eq!([2, 4].map(|slot| all_bits(&some, slot)), before);
    assert_ne!([2, 4].map(|slot| all_bits(&all, slot)), before);
    assert_eq!(
        [0, 3].map(|slot| all_bits(&some, slot)),
        [0, 3].map(|slot| all_bits(&all, slot))
    );
}

/// One bad element anywhere, or squares that overflow, and that slot alone waits.
#[test]
fn a_slot_whose_gradient_is_not_finite_keeps_every_bit_and_others_do_not_notice() {
    let updates: Vec<_> = (0..5).map(|slot| Some(update(slot, 1))).collect();
    let start = banks(&RANKS);
    let mut expected = start.clone();
    step(&mut expected, &updates, &gradients(&RANKS, 1));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
        for (layer, is_a) in [(0, true), (0, false), (1, true), (1, false)] {
            let slots = RANKS.iter().enumerate();
            let gradients = packed(slots.filter_map(|(slot, rank)| {
                let mut gradient = slot_gradients(slot, (*rank)?, 1);
                if slot == 3 {
                    let pair = &mut gradient[layer];
                    let part = if is_a { &mut pair.a } else { &mut pair.b };
                    let (shape, mut values) = (part.dims(), host(part.clone()));
                    values[shape[1] + 1] = bad;
                    *part = tensor(values, shape, &device());
                }
                Some(gradient)
            }));
            let mut found = start.clone();
            step(&mut found, &updates, &gradients);
            assert_eq!(
                all_bits(&found, 3),
                all_bits(&start, 3),
                "{bad} in layer {layer}"
            );
            for slot in [0, 2, 4] {
                let bits = [&found, &expected].map(|banks| all_bits(banks, slot));
                assert!(
                    bits[0] == bits[1],
                    "{bad} in layer {layer} of slot 3 changed slot {slot}"
                );
            }
        }
    }
}

#[test]
fn a_slot_is_updated_bit_for_bit_as_if_alone() {
    let mut together = banks(&RANKS);
    let mut alone: Vec<_> = SHAPES
        .iter()
        .zip(&together)
        .map(|(shape, bank)| {
            let mut alone = AdapterBank::new(shape[0], shape[1], 0, &device());
            alone.push(bank.extract(3).expect("a slot")).expect("fits");
            alone
        })
        .collect();
    for at in 1..=5 {
        let updates: Vec<_> = (0..5).map(|slot| Some(update(slot, at))).collect();
        step(&mut together, &updates, &gradients(&RANKS, at));
        step(&mut alone, &updates[3..4], &slot_gradients(3, 16, at));
    }
    assert!(all_bits(&together, 3) == all_bits(&alone, 0));
}

/// A frozen A keeps its bits and its moments, whatever its gradient is; B beside it and other slots take the step that
/// they take without it.
#[test]
fn a_frozen_a_keeps_its_bits() {
    let frozen = |slot: usize| slot == 2 || slot == 3;
    let mut thawed = banks(&RANKS);
    let mut some = thawed.clone();
    for bank in &mut some {
        let states: Vec<_> = (0..RANKS.len()).map(|slot| bank.extract(slot)).collect();
        let shape = bank.shape();
        *bank = AdapterBank::new(shape[0], shape[1], 0, &device());
        for (slot, state) in states.into_iter().enumerate() {
            let mut state = state.expect("a slot");
            if let Some(state) = &mut state {
                state.spec.freeze_a = frozen(slot);
            }
            bank.push(state).expect("fits");
        }
    }
    let started = some.clone();
    for at in 1..=3 {
        let updates: Vec<_> = (0..5).map(|slot| Some(update(slot, at))).collect();
        step(&mut thawed, &updates, &gradients(&RANKS, at));
        step(&mut some, &updates, &gradients(&RANKS, at));
    }
    for slot in [0, 2, 3, 4] {
        let states = [&some, &thawed, &started].map(|banks| states(banks, slot));
        for layer in 0..SHAPES.len() {
            let [found, thawed, started] = [0, 1, 2].map(|run| &states[run][layer]);
            let like = if frozen(slot) { started } else { thawed };
            for part in [
                |state: &AdapterState| state.weights.clone(),
                |state: &AdapterState| state.first_moment.clone(),
                |state: &AdapterState| state.second_moment.clone(),
            ] {
                assert!(
                    bits(&host(part(found).a)) == bits(&host(part(like).a)),
                    "A of {slot}"
                );
                assert!(
                    bits(&host(part(found).b)) == bits(&host(part(thawed).b)),
                    "B of {slot}"
                );
            }
        }
    }
}

/// The last ranks of one slot; its other ranks and the other slots take their steps.
#[test]
fn frozen_ranks_keep_their_bits() {
    let mut thawed = banks(&RANKS);
    let mut some = thawed.clone();
    let slot = (0..RANKS.len()).max_by_key(|&slot| RANKS[slot].unwrap_or(0));
    let slot = slot.expect("a slot");
    let trained = RANKS[slot].unwrap_or(0) / 2;
    for bank in &mut some {
        let states: Vec<_> = (0..RANKS.len()).map(|slot| bank.extract(slot)).collect();
        let shape = bank.shape();
        *bank = AdapterBank::new(shape[0], shape[1], 0, &device());
        for (at, state) in states.into_iter().enumerate() {
            let mut state = state.expect("a slot");
            if let Some(state) = state.as_mut().filter(|_| at == slot) {
                state.spec.frozen_ranks = state.spec.r - trained;
            }
            bank.push(state).expect("fits");
        }
    }
    let started = some.clone();
    for at in 1..=3 {
        let updates: Vec<_> = (0..5).map(|slot| Some(update(slot, at))).collect();
        step(&mut thawed, &updates, &gradients(&RANKS, at));
        step(&mut some, &updates, &gradients(&RANKS, at));
    }
    for at in (0..RANKS.len()).filter(|&at| RANKS[at].is_some()) {
        let states = [&some, &thawed, &started].map(|banks| states(banks, at));
        for layer in 0..SHAPES.len() {
            let rows = |run: usize, matrix: usize, ranks: std::ops::Range<usize>| {
                let state: &AdapterState = &states[run][layer];
                let LoraPair { a, b, .. } = state.weights.clone();
                bits(&host([a, b][matrix].clone().slice_dim(0, ranks)))
            };
            let r = states[0][layer].spec.r;
            let trained = if at == slot { trained } else { r };
            for matrix in [0, 1] {
                assert!(rows(0, matrix, 0..trained) == rows(1, matrix, 0..trained));
                if trained < r {
                    assert!(rows(0, matrix, trained..r) == rows(2, matrix, trained..r));
                }
            }
        }
    }
}

/// An embedding's step is that of another bank whose A and B have its learning rate.
#[test]
fn embeddings_have_a_learning_rate_of_their_own() {
    let mut both = [banks(&RANKS), banks(&RANKS)];
    for at in 1..=3 {
        let gradients = gradients(&RANKS, at);
        let squares = norms(&both[0], &gradients);
        let updates: Vec<_> = (0..5).map(|slot| update(slot, at)).collect();
        let of_embeddings = updates
            .iter()
            .map(|update| Some(*update))
            .collect::<Vec<_>>();
        let all = updates.iter().map(|update| {
            let learning_rates = update.learning_rates.embedding.into();
            Some(SlotUpdate {
                learning_rates,
                ..*update
            })
        });
        let steps =
            [of_embeddings, all.collect()].map(|updates| AdamWStep::new(&updates, squares.clone()));
        for (layer, gradient) in gradients.into_iter().enumerate() {
            steps[0].apply_to_embedding(&mut both[0][layer], gradient.clone());
            steps[1].apply(&mut both[1][layer], gradient);
        }
    }
    for slot in [0, 2, 3, 4] {
        assert!(
            all_bits(&both[0], slot) == all_bits(&both[1], slot),
            "slot {slot}"
        );
    }
}

#[test]
fn banks_without_adapters_have_no_norm_and_take_no_step() {
    let device = device();
    let mut bank = AdapterBank::new(3, 2, 0, &device);
    bank.push(None).expect("an empty slot");
    let gradient = Random::new(0).pair(0, [3, 2], &device);
    let squares = GradientNorms::new(bank.num_slots(), &device)
        .add(&bank, &gradient)
        .finish();
    assert_eq!(host(squares.clone()), [0.0]);
    AdamWStep::new(&[Some(update(0, 1))], squares).apply(&mut bank, gradient);
    assert!(bank.weights().is_none());
}

#[test]
#[should_panic(expected = "the gradient of a bank's B")]
fn a_gradient_of_another_shape_is_refused() {
    let bank = &banks(&RANKS)[0];
    let gradient = Random::new(0).pair(23, [7, 6], &device());
    let _ = GradientNorms::new(5, &device()).add(bank, &gradient);
}

#[test]
#[should_panic(expected = "one squared norm per slot")]
fn updates_are_one_per_slot() {
    let _ = AdamWStep::new(&[None; 2], Tensor::zeros([3], &device()));
}
