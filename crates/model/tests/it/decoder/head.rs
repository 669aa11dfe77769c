//! The loss fused with the head, against the full-logits expression.

use batchlora::{AdapterBank, AdapterState, LoraPair, LoraSpec, Segment, Segments};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use loraloom_model::{Checkpoint, HeadAdapters, LanguageModelHead, SmoothedTargets, Targets};

use crate::decoder::support::{
    Random, assert_close, assert_close_values, backbone_on, config, device, fixture, host, whole,
};

/// Targets of different rows, in any order.
fn random_targets(random: &mut Random, count: usize, rows: usize, vocabulary: usize) -> Targets {
    let mut order: Vec<_> = (0..rows).map(|row| (random.below(1 << 30), row)).collect();
    order.sort_unstable();
    Targets {
        rows: order[..count].iter().map(|&(_, row)| row).collect(),
        ids: (0..count)
            .map(|_| random.below(vocabulary) as u32)
            .collect(),
        weights: random.values(count),
        ..Targets::default()
    }
}

/// The first of the tokens with the largest logit.
fn likeliest(logits: &[f32]) -> u32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let first = logits.iter().position(|&logit| logit >= largest);
    first.expect("a number") as u32
}

/// On the CPU, where the oracle is.
fn integers(values: impl Iterator<Item = i32>) -> Tensor<1, Int> {
    let values: Vec<i32> = values.collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), &Device::flex().autodiff())
}

/// Losses and their gradient without adapters.
fn loss(head: &LanguageModelHead, hidden: Tensor<2>, targets: &Targets) -> (Tensor<1>, Tensor<2>) {
    let found = head.loss(hidden, targets, None).expect("a loss");
    assert!(found.adapters.is_none());
    (found.losses, found.gradient)
}

#[test]
fn the_loss_and_its_gradient_are_those_of_all_logits() {
    for model in ["llama-gqa", "llama-tied-rope-llama3", "qwen2-sharded"] {
        let (config, backbone) = (config(model), whole(model));
        let head = backbone.head().expect("a head");
        let oracle = backbone_on(model, 0..config.num_hidden_layers, &Device::flex());
        let oracle = oracle.head().expect("a head");
        for (rows, count) in [(1, 1), (9, 5), (40, 40), (300, 129)] {
            let mut random = Random::new(count as u64);
            let values = random.values(rows * config.d_model);
            let values = TensorData::new(values, [rows, config.d_model]);
            let hidden = Tensor::<2>::from_data(values.clone(), &Device::flex().autodiff());
            let hidden = hidden.require_grad();
            let targets = random_targets(&mut random, count, rows, config.vocab_size);

            let chosen = integers(targets.rows.iter().map(|&row| row as i32));
            let ids = integers(targets.ids.iter().map(|&id| id as i32)).reshape([count, 1]);
            let logits = oracle.logits(hidden.clone(), None).expect("logits");
            let logits = logits.select(0, chosen);
            let values_of = host(logits.clone());
            let expected = activation::log_softmax(logits, 1).gather(1, ids).neg();
            let expected = expected.reshape([count]);
            let weights = TensorData::new(targets.weights.clone(), [count]);
            let weights = Tensor::<1>::from_data(weights, &Device::flex().autodiff());
            let gradients = (expected.clone() * weights).sum().backward();
            let gradient = hidden.grad(&gradients).expect("a gradient");

            let input = Tensor::<2>::from_data(values, &device());
            let (losses, found) = loss(head, input.clone(), &targets);
            assert_close(model, losses.clone(), expected.inner(), 1e-5);
            let correct = values_of.chunks_exact(config.vocab_size).zip(&targets.ids);
            let correct = correct.map(|(logits, &id)| f32::from(u8::from(likeliest(logits) == id)));
            let scores = host(head.target_scores(input, &targets, None).expect("scores"));
            assert_eq!(scores[..count], host(losses));
            assert_eq!(scores[count..], correct.collect::<Vec<_>>(), "{model}");
            assert_close(&format!("{model}, gradient"), found, gradient, 1e-5);
        }
    }
}

/// Of some targets, with bounded logits as well; the others keep their bits.
#[test]
fn smoothed_losses_and_their_gradient_are_those_of_all_logits() {
    for model in ["llama-gqa", "gemma2"] {
        let (config, backbone) = (config(model), whole(model));
        let head = backbone.head().expect("a head");
        let oracle = backbone_on(model, 0..config.num_hidden_layers, &Device::flex());
        let oracle = oracle.head().expect("a head");
        let count = 300;
        let mut random = Random::new(3);
        let values = random.values(count * config.d_model);
        let values = TensorData::new(values, [count, config.d_model]);
        let plain = random_targets(&mut random, count, count, config.vocab_size);
        let smoothed = [(10, 10, 0.1), (40, 210, 0.3)];
        let mut factors = vec![0.0_f32; count];
        let mut targets = plain.clone();
        for (first, count, factor) in smoothed {
            factors[first..first + count].fill(factor as f32);
            targets.smoothed.push(SmoothedTargets {
                first,
                count,
                factor,
            });
        }

        let device_of_oracle = Device::flex().autodiff();
        let vector = |values: Vec<f32>| {
            Tensor::<1>::from_data(TensorData::new(values, [count]), &device_of_oracle)
        };
        let hidden = Tensor::<2>::from_data(values.clone(), &device_of_oracle).require_grad();
        let chosen = integers(targets.rows.iter().map(|&row| row as i32));
        let ids = integers(targets.ids.iter().map(|&id| id as i32)).reshape([count, 1]);
        let logits = oracle.logits(hidden.clone(), None).expect("logits");
        let surprises = activation::log_softmax(logits.select(0, chosen), 1).neg();
        let own = surprises.clone().gather(1, ids).reshape([count]);
        let mean = surprises.mean_dim(1).reshape([count]);
        let expected = own.clone() + (mean - own) * vector(factors.clone());
        let weights = vector(targets.weights.clone());
        let gradients = (expected.clone() * weights).sum().backward();
        let gradient = hidden.grad(&gradients).expect("a gradient");

        let input = Tensor::<2>::from_data(values, &device());
        let (losses, found) = loss(head, input.clone(), &targets);
        let (losses_before, before) = loss(head, input.clone(), &plain);
        assert_close(model, losses.clone(), expected.inner(), 1e-5);
        assert_close(&format!("{model}, gradient"), found.clone(), gradient, 1e-5);
        let scores = host(head.target_scores(input, &targets, None).expect("scores"));
        assert_eq!(scores[..count], host(losses.clone()));
        let (losses, losses_before) = (host(losses), host(losses_before));
        let (found, before) = (host(found), host(before));
        for (target, &row) in targets.rows.iter().enumerate() {
            if factors[target] == 0.0 {
                assert_eq!(losses[target].to_bits(), losses_before[target].to_bits());
                let row = row * config.d_model..(row + 1) * config.d_model;
                assert_eq!(found[row.clone()], before[row]);
            }
        }
    }
}

/// The rows of an adapter that diverged, first in the batch, and those of its neighbours, some of which
/// predict nothing.
#[test]
fn a_row_that_is_no_number_leaves_the_others_alone() {
    let model = "llama-gqa";
    let width = config(model).d_model;
    let mut random = Random::new(4);
    let mut values = random.values(6 * width);
    let backbone = whole(model);
    let head = backbone.head().expect("a head");
    let targets = Targets {
        rows: vec![0, 3, 5],
        ids: vec![1, 2, 3],
        weights: vec![0.25; 3],
        ..Targets::default()
    };
    let loss_of = |values: &[f32]| {
        let hidden = TensorData::new(values.to_vec(), [6, width]);
        let hidden = Tensor::from_data(hidden, &device());
        let (losses, gradient) = loss(head, hidden, &targets);
        (host(losses), host(gradient))
    };
    let (losses, gradient) = loss_of(&values);
    values[..width].fill(f32::NAN);
    let (spoilt_losses, spoilt) = loss_of(&values);
    assert!(spoilt_losses[0].is_nan() && spoilt[..width].iter().all(|value| value.is_nan()));
    assert_eq!(spoilt_losses[1..], losses[1..]);
    assert_eq!(spoilt[width..], gradient[width..]);
    for row in [1, 2, 4] {
        assert!(
            gradient[row * width..][..width]
                .iter()
                .all(|&value| value == 0.0)
        );
    }
}

/// So many targets that their logits are more than are held at a time, in a double-precision loop. The
/// rows are few different ones, again and again.
#[test]
fn the_loss_over_more_than_one_chunk() {
    let (model, distinct, count) = ("llama-gqa", 50, 45_000);
    let config = config(model);
    let [vocabulary, d_model] = [config.vocab_size, config.d_model];
    let bytes = 4 * count * vocabulary;
    assert!(bytes > 64 << 20, "all in one chunk on the CPU");
    let mut random = Random::new(1);
    let few = host(random.tensor::<2>([distinct, d_model], &device()));
    let of_row = |row: usize| &few[row % distinct * d_model..][..d_model];
    let values: Vec<f32> = (0..count).flat_map(of_row).copied().collect();
    let hidden = Tensor::<2>::from_data(TensorData::new(values, [count, d_model]), &device());
    let targets = random_targets(&mut random, count, count, vocabulary);
    let backbone = whole(model);
    let (losses, gradient) = loss(backbone.head().expect("a head"), hidden, &targets);

    let checkpoint = Checkpoint::open(&fixture(model)).expect("a checkpoint");
    let read = |name: &str| -> Vec<f64> {
        let tensor = checkpoint.tensor(name).expect("in the checkpoint").to_f32();
        tensor.into_iter().map(f64::from).collect()
    };
    let (weight, gamma) = (read("lm_head.weight"), read("model.norm.weight"));
    let normals: Vec<(Vec<f64>, f64, Vec<f64>)> = (0..distinct)
        .map(|row| {
            let x: Vec<f64> = of_row(row).iter().map(|&x| f64::from(x)).collect();
            let square = x.iter().map(|x| x * x).sum::<f64>() / d_model as f64;
            let rms = (square + config.rms_norm_eps).sqrt();
            let normal: Vec<f64> = x.iter().map(|x| x / rms).collect();
            let logits = weight.chunks(d_model).map(|w| {
                let terms = w.iter().zip(&gamma).zip(&normal);
                terms.map(|((w, gamma), x)| w * gamma * x).sum()
            });
            let logits = logits.collect();
            (normal, rms, logits)
        })
        .collect();
    let (mut expected_losses, mut expected_gradient) =
        (vec![0.0; count], vec![0.0; count * d_model]);
    for target in 0..count {
        let (row, id) = (targets.rows[target], targets.ids[target] as usize);
        let scale = f64::from(targets.weights[target]);
        let (normal, rms, logits) = &normals[row % distinct];
        let log_sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        expected_losses[target] = (log_sum - logits[id]) as f32;
        let mut of_normal = vec![0.0; d_model];
        for (token, (logit, w)) in logits.iter().zip(weight.chunks(d_model)).enumerate() {
            let own = if token == id { 1.0 } else { 0.0 };
            let of_logit = scale * ((logit - log_sum).exp() - own);
            for (sum, w) in of_normal.iter_mut().zip(w) {
                *sum += of_logit * w;
            }
        }
        for (of_normal, gamma) in of_normal.iter_mut().zip(&gamma) {
            *of_normal *= gamma;
        }
        let along = of_normal
            .iter()
            .zip(normal)
            .map(|(g, x)| g * x)
            .sum::<f64>()
            / d_model as f64;
        let expected = &mut expected_gradient[row * d_model..][..d_model];
        for (expected, (g, x)) in expected.iter_mut().zip(of_normal.iter().zip(normal)) {
            *expected = ((g - x * along) / rms) as f32;
        }
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
        ..Targets::default()
    };
    let (_, gradient) = loss(backbone.head().expect("a head"), hidden, &targets);
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
    let (losses, gradient) = loss(head, hidden.clone(), &Targets::default());
    assert_eq!(losses.dims(), [0]);
    let scores = head.target_scores(hidden, &Targets::default(), None);
    let scores = scores.expect("scores");
    assert_eq!(scores.dims(), [2, 0]);
    assert_eq!(host(gradient), [0.0; 3 * 48]);
}

/// Their values are compared with PEFT's in the parity tests.
#[test]
fn an_adapter_of_the_projection_has_the_same_bits_whatever_its_neighbours() {
    for (model, counts) in [
        ("llama-gqa", [9, 0, 30]),
        ("gemma2", [5, 3, 4]),
        ("llama-gqa", [45_000, 3, 4]),
        ("llama-gqa", [4, 3, 45_000]),
    ] {
        let (config, backbone) = (config(model), whole(model));
        let head = backbone.head().expect("a head");
        let mut random = Random::new(7);
        let [d_model, vocabulary] = [config.d_model, config.vocab_size];
        let mut bank = AdapterBank::new(d_model, vocabulary, 0, &device());
        for r in [2, 3] {
            let part = |random: &mut Random, width| {
                random.tensor::<2>([r, width], &device()).mul_scalar(0.2)
            };
            let weights = LoraPair {
                a: part(&mut random, d_model),
                b: part(&mut random, vocabulary),
                magnitude: None,
            };
            let state = AdapterState::new(LoraSpec::new(r, 2.0), weights).expect("an adapter");
            bank.push(Some(state)).expect("of its shape");
        }
        // Every second row predicts a token; the rows in the middle have no adapter.
        let ends = counts.map(|count| 2 * count);
        let rows: usize = ends.iter().sum();
        let segments = [(0..ends[0], 1), (rows - ends[2]..rows, 0)];
        let segments = segments.map(|(rows, slot)| Segment { rows, slot }).to_vec();
        let laid_out = Segments::new(rows, segments.clone())
            .and_then(|segments| segments.with_loss_scales(vec![4.0, 1.0]))
            .expect("in order");
        let count = rows / 2;
        let targets = Targets {
            rows: (0..count).map(|target| 2 * target).collect(),
            ids: (0..count)
                .map(|_| random.below(vocabulary) as u32)
                .collect(),
            weights: random.values(count),
            ..Targets::default()
        };
        let values = TensorData::new(random.values(rows * d_model), [rows, d_model]);
        let adapters = HeadAdapters {
            bank: &bank,
            segments: &laid_out,
            draws: None,
        };
        let hidden = Tensor::<2>::from_data(values.clone(), &device());
        let found = head
            .loss(hidden.clone(), &targets, Some(adapters))
            .expect("a loss");
        let scores = head
            .target_scores(hidden.clone(), &targets, Some(adapters))
            .expect("scores");
        assert_eq!(host(scores)[..count], host(found.losses.clone()));

        // Each segment alone has the same bits, whatever the chunks.
        let of_adapters = found.adapters.expect("gradients of adapters");
        for (segment, ranks) in segments.iter().zip([2..5, 0..2]) {
            let chosen: Vec<usize> = (0..count)
                .filter(|&t| segment.rows.contains(&(2 * t)))
                .collect();
            let targets = Targets {
                rows: chosen.iter().map(|&t| targets.rows[t]).collect(),
                ids: chosen.iter().map(|&t| targets.ids[t]).collect(),
                weights: chosen.iter().map(|&t| targets.weights[t]).collect(),
                ..Targets::default()
            };
            let alone = head
                .loss(hidden.clone(), &targets, Some(adapters))
                .expect("a loss");
            let alone = alone
                .adapters
                .expect("gradients")
                .map(|t| t.slice_dim(0, ranks.clone()));
            let among = of_adapters.map(|t| t.slice_dim(0, ranks.clone()));
            // A loss scale is a power of two, and the bits of all others are the same.
            if segment.slot == 1 && device() == Device::flex() {
                let plain = Segments::new(rows, segments.clone()).expect("in order");
                let plain = HeadAdapters {
                    segments: &plain,
                    ..adapters
                };
                let unscaled = head
                    .loss(hidden.clone(), &targets, Some(plain))
                    .expect("a loss");
                let unscaled = unscaled.adapters.expect("gradients");
                let unscaled = unscaled.map(|t| t.slice_dim(0, ranks.clone()).div_scalar(4.0));
                assert_eq!(host(unscaled.a), host(alone.a.clone()), "{model}");
            }
            for (alone, among) in [(alone.a, among.a), (alone.b, among.b)] {
                let (alone, among) = (host(alone), host(among));
                assert!(alone.iter().any(|&value| value != 0.0));
                if device() == Device::flex() {
                    assert_eq!(alone, among, "{model}, {ranks:?}");
                }
            }
        }
    }
}
