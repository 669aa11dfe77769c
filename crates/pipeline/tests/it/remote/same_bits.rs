//! Workers compute what local stages do, to the last bit.

use burn::tensor::FloatDType;
use loraloom_model::Quantization;
use loraloom_pipeline::{Pipeline, PipelineStage, remote::Worker};

use crate::remote::{
    alone::done_alone,
    scenarios::{everything, in_parts, train, train_ahead},
    support::{Model, controller, model, options, remote},
};

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
    if done_alone() {
        return;
    }
    let model = Model::open(&model());
    for shape in [[1, 1], [2, 1], [2, 3]] {
        assert_same(&model, shape);
    }
}

/// Workers quantise the layers that they read.
#[test]
fn training_over_workers_in_nf4() {
    if done_alone() {
        return;
    }
    let mut model = Model::open(&model());
    model.config = model
        .config
        .with_quantization(Quantization {
            double_quant: true,
            skip: vec!["down_proj".to_owned()],
        })
        .unwrap();
    assert_same(&model, [2, 1]);
}

/// Further ahead, for a link that takes long.
#[test]
fn training_over_workers_with_a_longer_warm_up() {
    if done_alone() {
        return;
    }
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
    if done_alone() {
        return;
    }
    let model = Model::open(&model());
    let one = in_parts(Pipeline::new(vec![model.local(0..4)]).unwrap(), &model);
    let (two, _workers) = remote(&model, &[0..3, 3..4]);
    assert_eq!(in_parts(two, &model), one);
}

/// A stage has the weights of its layers in memory and no others.
#[test]
fn a_stage_holds_its_layers_alone() {
    if done_alone() {
        return;
    }
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
    if done_alone() {
        return;
    }
    let mut model = Model::open(&model());
    model.gradient_checkpointing = true;
    assert_same(&model, [2, 2]);
}

#[test]
fn training_over_workers_in_half_precision() {
    if done_alone() {
        return;
    }
    let mut model = Model::open(&model());
    model.dtype = FloatDType::BF16;
    assert_same(&model, [2, 1]);
}

/// Stages of this process and workers may follow each other in any order.
#[test]
fn training_over_workers_and_local_stages() {
    if done_alone() {
        return;
    }
    let model = Model::open(&model());
    let one = Pipeline::new(vec![model.local(0..4)]).unwrap();
    let one = train(one, &model, [2, 1]);
    for remote in 0..3 {
        let worker = Worker::start(options(
            &format!("mixed-{remote}"),
            &crate::remote::support::model(),
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
        let pipeline = Pipeline::new(stages.collect::<Vec<Box<dyn PipelineStage>>>()).unwrap();
        assert_eq!(train(pipeline, &model, [2, 1]), one);
    }
}

/// Adapters that move between groups, leave and come back, evaluation, and decoding with caches.
#[test]
fn everything_but_training() {
    if done_alone() {
        return;
    }
    let model = Model::open(&model());
    let one = everything(Pipeline::new(vec![model.local(0..4)]).unwrap(), &model);
    let (two, _workers) = remote(&model, &[0..1, 1..4]);
    let two = everything(two, &model);
    assert_eq!(two.len(), one.len());
    for (index, (two, one)) in two.iter().zip(&one).enumerate() {
        assert!(!one.is_empty() && two == one, "{index}");
    }
}
