//! The batched optimizer against numbers that torch gave.

use batchlora::{
    AdamWStep, AdapterBank, AdapterState, GradientNorms, LearningRates, LoraPair, LoraSpec,
    SlotUpdate,
};
use burn::tensor::Tensor;

use crate::support::{assert_close, device, host, tensor};

/// Numbers of torch 2.15.0 (CPU), for two adapters of ranks 2 and 1 at a layer [3, 2]:
///
/// ```python
/// def values(count, phase):
///     return torch.tensor([((7 * i + 3 * phase) % 11 - 5) / 8 for i in range(count)])
/// for slot, (r, lr, betas, eps, decay, clip) in enumerate([
///     (2, 1e-2, (0.9, 0.999), 1e-8, 0.1, 1.0), (1, 3e-3, (0.8, 0.95), 1e-4, 0.0, 100.0)]):
///     a = torch.nn.Parameter(values(r * 3, slot).reshape(r, 3))
///     b = torch.nn.Parameter(values(r * 2, slot + 5).reshape(r, 2))
///     o = torch.optim.AdamW([a, b], lr=lr, betas=betas, eps=eps, weight_decay=decay)
///     for step in range(1, 6):
///         a.grad = values(r * 3, slot + 10 * step).reshape(r, 3)
///         b.grad = values(r * 2, slot + 10 * step + 5).reshape(r, 2)
///         torch.nn.utils.clip_grad_norm_([a, b], clip)
///         o.step()
///     for t in (a, b):
///         print(*(f"{v:.9g}" for x in (t, o.state[t]["exp_avg"], o.state[t]["exp_avg_sq"])
///                 for v in x.flatten().tolist()))
/// ```
#[test]
fn five_steps_give_the_numbers_that_torch_gave() {
    let device = device();
    let values = |count: usize, phase: usize| -> Vec<f32> {
        let value = |i: usize| ((7 * i + 3 * phase) % 11) as f32 - 5.0;
        (0..count).map(|i| value(i) / 8.0).collect()
    };
    let pair = |r: usize, phase: usize| LoraPair {
        a: tensor(values(r * 3, phase), [r, 3], &device),
        b: tensor(values(r * 2, phase + 5), [r, 2], &device),
        magnitude: None,
    };
    let update = |learning_rate, beta1, beta2, epsilon, weight_decay, max_grad_norm| SlotUpdate {
        learning_rates: LearningRates::from(learning_rate),
        beta1,
        beta2,
        epsilon,
        weight_decay,
        max_grad_norm,
        step: 0,
    };
    let slots = [
        update(1e-2, 0.9, 0.999, 1e-8, 0.1, 1.0),
        update(3e-3, 0.8, 0.95, 1e-4, 0.0, 100.0),
    ];
    let mut bank = AdapterBank::new(3, 2, 0, &device);
    for (slot, r) in [2, 1].into_iter().enumerate() {
        let state = AdapterState::new(LoraSpec::new(r, 1.0), pair(r, slot));
        bank.push(Some(state.expect("valid"))).expect("fits");
    }
    for step in 1..=5 {
        let pairs = [pair(2, 10 * step), pair(1, 10 * step + 1)];
        let gradient = LoraPair {
            a: Tensor::cat(pairs.iter().map(|pair| pair.a.clone()).collect(), 0),
            b: Tensor::cat(pairs.iter().map(|pair| pair.b.clone()).collect(), 0),
            magnitude: None,
        };
        let squares = GradientNorms::new(bank.num_slots(), &device)
            .add(&bank, &gradient)
            .finish();
        let at = |slot: SlotUpdate| {
            Some(SlotUpdate {
                step: step as u64,
                ..slot
            })
        };
        AdamWStep::new(&slots.map(at), squares).apply(&mut bank, gradient);
    }
    #[rustfmt::skip]
    #[expect(clippy::unreadable_literal, reason = "as torch printed them")]
    let expected: [[&[f64]; 6]; 2] = [
        [
            &[-0.644366503, 0.266968518, -0.233595997, 0.613488495, 0.152244285, -0.400527835],
            &[-0.113754109, -0.644366503, 0.266968518, -0.233595997],
            &[0.0525487922, -0.00860096235, 0.012248965, 0.0118766585, -0.049273096, 0.037735831],
            &[-0.0487738587, 0.0525487922, -0.00860096235, 0.012248965],
            &[0.000461778225, 0.000425525621, 0.00060120906, 0.000410580309, 0.000486687175, 0.000551291567],
            &[0.000564417511, 0.000461778225, 0.000425525621, 0.00060120906],
        ],
        [
            &[-0.245653734, 0.621960163, 0.133561492],
            &[0.255616039, -0.245653734],
            &[0.0522000082, 0.04868, -0.111480005],
            &[-0.0274399966, 0.0522000082],
            &[0.0481476821, 0.0271526556, 0.0326678902],
            &[0.0265019573, 0.0481476821],
        ],
    ];
    for (slot, expected) in expected.into_iter().enumerate() {
        let state = bank.extract(slot).expect("a slot").expect("an adapter");
        let pairs = [state.weights, state.first_moment, state.second_moment];
        let found = pairs.into_iter().flat_map(|pair| [pair.a, pair.b]);
        for (index, (found, expected)) in found.zip(expected).enumerate() {
            assert_close(
                &format!("slot {slot}, part {index}"),
                &host(found),
                expected,
                5e-7,
            );
        }
    }
}
