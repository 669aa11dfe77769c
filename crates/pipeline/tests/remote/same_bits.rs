//! Workers compute what local stages do, to the last bit.

use burn::tensor::FloatDType;
use loraloom_pipeline::Pipeline;

use crate::support::{Model, adapter, bits, microbatch, model, passes, remote, training};

/// What a run came to, as bits.
#[derive(Debug, PartialEq)]
struct Trained {
    losses: Vec<Vec<Vec<u32>>>,
    norms: Vec<Vec<u32>>,
    adapters: Vec<Vec<u32>>,
}

fn to_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn train(pipeline: Pipeline, model: &Model, shape: [usize; 2]) -> Trained {
    train_ahead(pipeline, model, shape, 0)
}

fn train_ahead(
    mut pipeline: Pipeline,
    model: &Model,
    [groups, microbatches]: [usize; 2],
    extra_warmup: usize,
) -> Trained {
    pipeline.reserve_groups(groups).unwrap();
    for group in 0..groups {
        for slot in 0..2 {
            let seed = (2 * group + slot) as u64;
            let pushed = pipeline.push(group, adapter(&model.config, seed)).unwrap();
            assert_eq!(pushed, slot);
        }
    }
    let stages = pipeline.layers().len();
    let mut training = training(model, groups, microbatches);
    let mut passes = passes(stages, groups, microbatches, 4);
    passes.shape.extra_warmup = extra_warmup;
    let linked = stages > 1 && pipeline.names().any(|name| name.starts_with("remote:"));
    pipeline.run(&passes, &mut training).unwrap();
    assert_eq!(training.outcomes.len(), 4);
    let all = training.outcomes.iter().flat_map(|outcome| &outcome.groups);
    let losses = all
        .clone()
        .map(|group| group.losses.iter().map(|of| to_bits(of)).collect());
    let norms = all.map(|group| to_bits(&group.squared_norms));
    let trained = Trained {
        losses: losses.collect(),
        norms: norms.collect(),
        adapters: Vec::new(),
    };
    for outcome in &training.outcomes {
        for busy in &outcome.busy {
            assert!(
                busy.is_some_and(|busy| busy > 0.0 && busy < 60.0),
                "{:?}",
                outcome.busy
            );
        }
        assert_eq!(outcome.transfers.is_some(), linked, "{outcome:?}");
        if let Some(transfers) = outcome.transfers {
            // Both ends share this machine's clock, so that it can be told wrong by microseconds.
            let most = 2.0 * (groups * microbatches * stages) as f64 * 60.0;
            assert!(transfers.seconds > 0.0 && transfers.seconds < most);
            assert!((0.0..=transfers.seconds).contains(&transfers.waited));
        }
    }
    let extracted = (0..groups).flat_map(|group| [(group, 0), (group, 1)]);
    let adapters = extracted.map(|(group, slot)| bits(pipeline.extract(group, slot).unwrap()));
    let adapters = adapters.collect();
    Trained {
        adapters,
        ..trained
    }
}

fn assert_same(model: &Model, shape: [usize; 2]) {
    let one = Pipeline::new(vec![model.local(0..4)]).unwrap();
    let one = train(one, model, shape);
    assert!(
        one.losses
            .iter()
            .flatten()
            .flatten()
            .all(|bits| f32::from_bits(*bits) > 0.0)
    );
    let (two, _workers) = remote(model, &[0..3, 3..4]);
    assert_eq!(train(two, model, shape), one);
}

#[test]
fn training_over_workers() {
    let model = Model::open(&model());
    for shape in [[1, 1], [2, 1], [2, 3]] {
        assert_same(&model, shape);
    }
}

/// Further ahead, for a link that takes long.
#[test]
fn training_over_workers_with_a_longer_warm_up() {
    let model = Model::open(&model());
    let one = Pipeline::new(vec![model.local(0..4)]).unwrap();
    let one = train(one, &model, [4, 1]);
    let (two, _workers) = remote(&model, &[0..2, 2..4]);
    assert_eq!(train_ahead(two, &model, [4, 1], 2), one);
}

/// Gradients that wait for the rest of their step go with their group, and are lost when an adapter
/// of it comes or goes, at workers as here.
#[test]
fn training_over_workers_with_steps_in_parts() {
    let model = Model::open(&model());
    let run = |mut pipeline: Pipeline| {
        pipeline.reserve_groups(2).unwrap();
        for (group, seed) in [(0, 1), (0, 2), (1, 3), (1, 4)] {
            pipeline.push(group, adapter(&model.config, seed)).unwrap();
        }
        let passes = passes(pipeline.layers().len(), 2, 2, 2);
        let mut training = training(&model, 2, 2);
        training.parts = 3;
        let mut run = |pipeline: &mut Pipeline| {
            // Of three parts two.
            pipeline.run(&passes, &mut training).unwrap();
            let revisions = [0, 1].map(|group| pipeline.revision(group));
            let slots = (0..2).flat_map(|group| [(group, 0), (group, 1)]);
            let adapters = slots.map(|(group, slot)| bits(pipeline.extract(group, slot).unwrap()));
            (revisions, adapters.collect::<Vec<_>>())
        };
        let (first, mut found) = run(&mut pipeline);
        pipeline.swap_groups(0, 1).unwrap();
        let (second, adapters) = run(&mut pipeline);
        assert_eq!(second, [first[1], first[0]]);
        found.extend(adapters);
        let removed = pipeline.remove(1, 1).unwrap();
        pipeline.push(1, removed).unwrap();
        let (third, adapters) = run(&mut pipeline);
        assert_eq!(third[0], second[0]);
        assert!(third[1] > second[0].max(second[1]));
        found.extend(adapters);
        training.parts = 1;
        pipeline.run(&passes, &mut training).unwrap();
        for (group, slot) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            found.push(bits(pipeline.extract(group, slot).unwrap()));
        }
        // The second of a group is as it was until its step is whole.
        assert_eq!([&found[1], &found[3]], [&found[7], &found[5]]);
        assert_ne!(found[0], found[6]);
        found
    };
    let one = run(Pipeline::new(vec![model.local(0..4)]).unwrap());
    let (two, _workers) = remote(&model, &[0..3, 3..4]);
    assert_eq!(run(two), one);
}

/// A stage has the weights of its layers in memory and no others.
#[test]
fn a_stage_holds_its_layers_alone() {
    let model = Model::open(&model());
    let bytes_of = |layers: std::ops::Range<usize>| {
        let shapes = loraloom_model::parameter_shapes(&model.config);
        let own = shapes.into_iter().filter(|(name, _)| {
            let layer = name
                .strip_prefix("model.layers.")
                .and_then(|rest| rest.split('.').next()?.parse().ok());
            match layer {
                Some(layer) => layers.contains(&layer),
                None if name.contains("embed_tokens") => {
                    layers.start == 0 || (layers.end == 4 && model.config.tie_word_embeddings)
                }
                None => layers.end == 4,
            }
        });
        let elements = own.map(|(_, shape)| shape.iter().product::<usize>());
        4 * elements.sum::<usize>() as u64
    };
    for cut in [vec![0..1, 1..4], vec![0..3, 3..4], vec![0..1, 1..2, 2..4]] {
        let (remote, _workers) = remote(&model, &cut);
        let local = cut.iter().map(|layers| model.local(layers.clone()));
        let local = Pipeline::new(local.collect()).unwrap();
        let expected: Vec<u64> = cut.iter().cloned().map(bytes_of).collect();
        assert_eq!(local.weight_bytes().collect::<Vec<_>>(), expected);
        assert_eq!(remote.weight_bytes().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn training_over_workers_that_compute_layers_again() {
    let mut model = Model::open(&model());
    model.gradient_checkpointing = true;
    assert_same(&model, [2, 2]);
}

#[test]
fn training_over_workers_in_half_precision() {
    let mut model = Model::open(&model());
    model.dtype = FloatDType::BF16;
    assert_same(&model, [2, 1]);
}

/// Stages of this process and workers may follow each other in any order.
#[test]
fn training_over_workers_and_local_stages() {
    use crate::support::{controller, options};
    use loraloom_pipeline::remote::Worker;
    let model = Model::open(&model());
    let one = Pipeline::new(vec![model.local(0..4)]).unwrap();
    let one = train(one, &model, [2, 1]);
    for remote in 0..3 {
        let worker = Worker::start(options(
            &format!("mixed-{remote}"),
            &crate::support::model(),
        ));
        let (worker, controller) = (worker.unwrap(), controller());
        let stages = [0..2, 2..3, 3..4]
            .into_iter()
            .enumerate()
            .map(|(stage, layers)| {
                if stage == remote {
                    model
                        .connect(&controller, &worker, stage, layers)
                        .unwrap()
                        .into()
                } else {
                    model.local(layers).into()
                }
            });
        let pipeline = Pipeline::of(stages.collect()).unwrap();
        assert_eq!(train(pipeline, &model, [2, 1]), one);
    }
}

/// Adapters that move between groups, leave and come back, evaluation, and decoding with caches.
#[test]
fn everything_but_training() {
    let model = Model::open(&model());
    let config = &model.config;
    let run = |mut pipeline: Pipeline| {
        let mut found: Vec<Vec<u32>> = Vec::new();
        pipeline.reserve_groups(3).unwrap();
        for seed in [4, 1, 2] {
            pipeline.push(0, adapter(config, seed)).unwrap();
        }
        pipeline.push(2, adapter(config, 7)).unwrap();
        pipeline.swap_groups(0, 2).unwrap();
        let removed = pipeline.remove(2, 0).unwrap();
        pipeline.push(0, removed.clone()).unwrap();
        found.push(bits(removed));
        for (group, slot) in [(0, 0), (0, 1), (2, 0), (2, 1)] {
            found.push(bits(pipeline.extract(group, slot).unwrap()));
        }
        for group in [0, 2] {
            let microbatch = microbatch(config, 5, None);
            found.push(to_bits(
                &pipeline.target_losses(group, &microbatch).unwrap(),
            ));
            found.push(to_bits(&pipeline.logits(group, &microbatch).unwrap()));
        }
        let mut caches = pipeline.caches();
        let mut next = |caches: &mut _, past, length, seed: usize| {
            let mut batch = microbatch(config, seed, None);
            let segments = [0, 1].map(|slot| batchlora::Segment {
                rows: slot * length..(slot + 1) * length,
                slot,
            });
            batch.ids.truncate(2 * length);
            batch.sequences = loraloom_model::Sequences::from_lengths([length, length]);
            batch.rope_lengths = vec![length; 2];
            batch.segments = batchlora::Segments::new(2 * length, segments.to_vec()).unwrap();
            batch.past = past;
            found.push(to_bits(&pipeline.next_logits(0, &batch, caches).unwrap()));
        };
        next(&mut caches, 0, 5, 11);
        assert_eq!(caches.tokens(), 5);
        let mut other = caches.clone();
        next(&mut caches, 5, 1, 12);
        next(&mut caches, 6, 1, 13);
        next(&mut other, 5, 1, 14);
        drop(caches);
        next(&mut other, 6, 1, 15);
        assert_eq!(other.tokens(), 7);
        found
    };
    let one = run(Pipeline::new(vec![model.local(0..4)]).unwrap());
    let (two, _workers) = remote(&model, &[0..1, 1..4]);
    let two = run(two);
    assert_eq!(two.len(), one.len());
    for (index, (two, one)) in two.iter().zip(&one).enumerate() {
        assert!(!one.is_empty() && two == one, "{index}");
    }
}
