//! The loss fused with the head, against the full-logits expression.

use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use loraloom_model::{Checkpoint, Targets};

use crate::decoder::support::{
    Random, assert_close, assert_close_values, backbone_on, config, device, fixture, host, whole,
};

/// Targets of different rows, in any order, if there are rows enough; else some rows have several.
fn random_targets(random: &mut Random, count: usize, rows: usize, vocabulary: usize) -> Targets {
    let mut order: Vec<_> = (0..rows).map(|row| (random.below(1 << 30), row)).collect();
    order.sort_unstable();
    Targets {
        rows: (0..count).map(|target| order[target % rows].1).collect(),
        ids: (0..count)
            .map(|_| random.below(vocabulary) as u32)
            .collect(),
        weights: random.values(count),
    }
}

/// On the CPU, where the oracle is.
fn integers(values: impl Iterator<Item = i32>) -> Tensor<1, Int> {
    let values: Vec<i32> = values.collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), &Device::flex().autodiff())
}

#[test]
fn the_loss_and_its_gradient_are_those_of_all_logits() {
    for model in ["llama-gqa", "llama-tied-rope-llama3", "qwen2-sharded"] {
        let (config, backbone) = (config(model), whole(model));
        let head = backbone.head().expect("a head");
        let oracle = backbone_on(model, 0..config.num_hidden_layers, &Device::flex());
        let oracle = oracle.head().expect("a head");
        for (rows, count) in [(1, 1), (9, 5), (40, 40), (7, 60)] {
            let mut random = Random::new(count as u64);
            let values = random.values(rows * config.d_model);
            let values = TensorData::new(values, [rows, config.d_model]);
            let hidden = Tensor::<2>::from_data(values.clone(), &Device::flex().autodiff());
            let hidden = hidden.require_grad();
            let targets = random_targets(&mut random, count, rows, config.vocab_size);

            let chosen = integers(targets.rows.iter().map(|&row| row as i32));
            let ids = integers(targets.ids.iter().map(|&id| id as i32)).reshape([count, 1]);
            let logits = oracle.logits(hidden.clone()).select(0, chosen);
            let expected = activation::log_softmax(logits, 1).gather(1, ids).neg();
            let expected = expected.reshape([count]);
            let weights = TensorData::new(targets.weights.clone(), [count]);
            let weights = Tensor::<1>::from_data(weights, &Device::flex().autodiff());
            let gradients = (expected.clone() * weights).sum().backward();
            let gradient = hidden.grad(&gradients).expect("a gradient");

            let input = Tensor::<2>::from_data(values, &device());
            let (losses, found) = head.loss(input.clone(), &targets);
            assert_close(model, losses.clone(), expected.inner(), 1e-5);
            assert_eq!(host(head.target_losses(input, &targets)), host(losses));
            assert_close(&format!("{model}, gradient"), found, gradient, 1e-5);
        }
    }
}

/// So many targets that their logits are more than are held at a time, in a double-precision loop
/// over the distinct rows.
#[test]
fn the_loss_over_more_than_one_chunk() {
    let (model, rows, count) = ("llama-gqa", 50, 45_000);
    let config = config(model);
    let [vocabulary, d_model] = [config.vocab_size, config.d_model];
    assert!(count * vocabulary > 1 << 24, "all in one chunk");
    let mut random = Random::new(1);
    let hidden = random.tensor::<2>([rows, d_model], &device());
    let targets = random_targets(&mut random, count, rows, vocabulary);
    let backbone = whole(model);
    let (losses, gradient) = backbone
        .head()
        .expect("a head")
        .loss(hidden.clone(), &targets);

    let checkpoint = Checkpoint::open(&fixture(model)).expect("a checkpoint");
    let read = |name: &str| -> Vec<f64> {
        let tensor = checkpoint.tensor(name).expect("in the checkpoint").to_f32();
        tensor.into_iter().map(f64::from).collect()
    };
    let (weight, gamma) = (read("lm_head.weight"), read("model.norm.weight"));
    let hidden = host(hidden);
    let mut expected_losses = vec![0.0; count];
    let mut expected_gradient = Vec::new();
    for row in 0..rows {
        let x: Vec<f64> = hidden[row * d_model..][..d_model]
            .iter()
            .map(|&x| f64::from(x))
            .collect();
        let square = x.iter().map(|x| x * x).sum::<f64>() / d_model as f64;
        let rms = (square + config.rms_norm_eps).sqrt();
        let logits: Vec<f64> = weight
            .chunks(d_model)
            .map(|w| (0..d_model).map(|i| w[i] * gamma[i] * x[i] / rms).sum())
            .collect();
        let log_sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        let mut of_logits = vec![0.0; vocabulary];
        for target in (0..count).filter(|&target| targets.rows[target] == row) {
            let (id, scale) = (
                targets.ids[target] as usize,
                f64::from(targets.weights[target]),
            );
            expected_losses[target] = (log_sum - logits[id]) as f32;
            for (gradient, logit) in of_logits.iter_mut().zip(&logits) {
                *gradient += scale * (logit - log_sum).exp();
            }
            of_logits[id] -= scale;
        }
        let of_normal: Vec<f64> = (0..d_model)
            .map(|i| {
                gamma[i]
                    * (0..vocabulary)
                        .map(|v| of_logits[v] * weight[v * d_model + i])
                        .sum::<f64>()
            })
            .collect();
        let along = (0..d_model).map(|i| of_normal[i] * x[i] / rms).sum::<f64>() / d_model as f64;
        expected_gradient
            .extend((0..d_model).map(|i| ((of_normal[i] - x[i] / rms * along) / rms) as f32));
    }
    assert_close_values("losses", &host(losses), &expected_losses, 1e-5);
    assert_close_values("gradient", &host(gradient), &expected_gradient, 1e-5);
}

#[test]
fn rows_that_predict_nothing_have_no_gradient() {
    let backbone = whole("llama-gqa");
    let hidden = Random::new(1).tensor([4, 48], &device());
    let targets = Targets {
        rows: vec![2],
        ids: vec![7],
        weights: vec![1.0],
    };
    let (_, gradient) = backbone.head().expect("a head").loss(hidden, &targets);
    let gradient = host(gradient);
    let zero: Vec<_> = gradient
        .chunks(48)
        .map(|row| row.iter().all(|&value| value == 0.0))
        .collect();
    assert_eq!(zero, [true, true, false, true]);
}

#[test]
fn without_targets_there_is_neither_loss_nor_gradient() {
    let backbone = whole("llama-gqa");
    let hidden = Random::new(1).tensor([3, 48], &device());
    let head = backbone.head().expect("a head");
    let (losses, gradient) = head.loss(hidden.clone(), &Targets::default());
    assert_eq!(losses.dims(), [0]);
    assert_eq!(head.target_losses(hidden, &Targets::default()).dims(), [0]);
    assert_eq!(host(gradient), [0.0; 3 * 48]);
}
