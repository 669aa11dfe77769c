//! Groups whose layers are on different stages compute what one stage does, to the last bit.

use burn::tensor::FloatDType;
use loraloom_pipeline::{Partitions, Pipeline, PipelineError, PipelineStage, Stage, StageLayers};

use crate::remote::{
    alone::done_alone,
    scenarios::{Trained, everything, in_parts, to_bits, train, train_ahead},
    support::{Model, adapter, bits, model, passes, remote_staggered, training},
};

/// Layers of the bundled model, by stage and partition.
fn cuts() -> Vec<Vec<StageLayers>> {
    let staggered = |stages: &[&[std::ops::Range<usize>]]| -> Vec<StageLayers> {
        let stages = stages.iter().map(|ranges| ranges.to_vec());
        stages
            .map(|ranges| StageLayers::new(ranges).unwrap())
            .collect()
    };
    vec![
        staggered(&[&[0..2, 0..3], &[2..4, 3..4]]),
        staggered(&[&[0..1, 0..3], &[1..4, 3..4]]),
        staggered(&[
            &[0..2, 0..1, 0..1],
            &[2..3, 1..3, 1..2],
            &[3..4, 3..4, 2..4],
        ]),
    ]
}

fn local(model: &Model, cut: &[StageLayers]) -> Pipeline {
    let stages = cut.iter().map(|layers| model.local(layers.clone()));
    Pipeline::new(stages.collect()).unwrap()
}

fn one(model: &Model) -> Pipeline {
    Pipeline::new(vec![model.local(0..4)]).unwrap()
}

/// The same of one stage, of staggered stages of this process, and of three workers.
fn assert_same<T: PartialEq + std::fmt::Debug>(
    model: &Model,
    scenario: impl Fn(Pipeline, &Model) -> T,
) {
    let expected = scenario(one(model), model);
    let cuts = cuts();
    for cut in &cuts {
        assert!(scenario(local(model, cut), model) == expected, "{cut:?}");
    }
    let (workers, _workers) = remote_staggered(model, &cuts[2]);
    assert!(scenario(workers, model) == expected, "workers");
}

#[test]
fn staggered_training() {
    if done_alone() {
        return;
    }
    let model = Model::open(&model());
    for shape in [[2, 1], [3, 2]] {
        assert_same(&model, |pipeline, model| train(pipeline, model, shape));
    }
}

#[test]
fn staggered_training_further_ahead() {
    if done_alone() {
        return;
    }
    let model = Model::open(&model());
    assert_same(&model, |pipeline, model| -> Trained {
        train_ahead(pipeline, model, [5, 1], 1)
    });
}

#[test]
fn staggered_training_that_computes_layers_again() {
    if done_alone() {
        return;
    }
    let mut model = Model::open(&model());
    model.gradient_checkpointing = true;
    assert_same(&model, |pipeline, model| train(pipeline, model, [3, 2]));
}

#[test]
fn staggered_training_in_half_precision() {
    if done_alone() {
        return;
    }
    let mut model = Model::open(&model());
    model.dtype = FloatDType::BF16;
    assert_same(&model, |pipeline, model| train(pipeline, model, [2, 1]));
}

#[test]
fn staggered_training_with_steps_in_parts() {
    if done_alone() {
        return;
    }
    assert_same(&Model::open(&model()), in_parts);
}

/// Training of three groups, adapters that change places between them, and training again.
fn moved(mut pipeline: Pipeline, model: &Model) -> Vec<Vec<u32>> {
    pipeline.reserve_groups(3).unwrap();
    let places = || (0..3).flat_map(|group| [(group, 0), (group, 1)]);
    for (seed, (group, slot)) in (3..).zip(places()) {
        let pushed = pipeline.push(group, adapter(&model.config, seed)).unwrap();
        assert_eq!(pushed, slot);
    }
    let passes = passes(pipeline.layers().len(), 3, 2, 3);
    let mut training = training(model, 3, 2);
    let mut found = Vec::new();
    for round in 0..3 {
        pipeline.run(&passes, &mut training).unwrap();
        for (group, slot) in places() {
            found.push(bits(pipeline.extract(group, slot).unwrap()));
        }
        pipeline.swap_groups(round % 2, 2).unwrap();
        // Out of one group and into another, which has its layers elsewhere.
        let first = pipeline.remove(0, 0).unwrap();
        let second = pipeline.remove(2, 1).unwrap();
        pipeline.push(2, first).unwrap();
        pipeline.push(0, second).unwrap();
    }
    for outcome in &training.outcomes {
        for group in &outcome.groups {
            found.extend(group.losses.iter().map(|losses| to_bits(losses)));
            found.push(to_bits(&group.squared_norms));
        }
    }
    found
}

#[test]
fn staggered_groups_whose_adapters_move() {
    if done_alone() {
        return;
    }
    assert_same(&Model::open(&model()), moved);
}

#[test]
fn staggered_evaluation_and_decoding() {
    if done_alone() {
        return;
    }
    assert_same(&Model::open(&model()), everything);
}

/// A stage holds what any group needs, and no more.
#[test]
fn weights_are_those_of_all_groups() {
    if done_alone() {
        return;
    }
    let model = Model::open(&model());
    for cut in cuts() {
        let held = cut.iter().map(|layers| model.local(layers.held()));
        let held: Vec<u64> = held.map(|stage| stage.weight_bytes()).collect();
        let staggered = local(&model, &cut);
        assert_eq!(staggered.weight_bytes().collect::<Vec<_>>(), held);
        let (workers, _workers) = remote_staggered(&model, &cut);
        assert_eq!(workers.weight_bytes().collect::<Vec<_>>(), held);
        let layers = workers.layers().collect::<Vec<_>>();
        assert_eq!(
            layers,
            cut.iter().map(StageLayers::held).collect::<Vec<_>>()
        );
        let partitions: &Partitions = workers.partitions();
        assert_eq!(partitions.stages(), cut);
    }
}

/// Stages must agree on the layers of every group.
#[test]
fn stages_that_do_not_fit_are_refused() {
    if done_alone() {
        return;
    }
    let model = Model::open(&model());
    let stage = |ranges: &[std::ops::Range<usize>]| -> Stage {
        let layers = StageLayers::new(ranges.to_vec()).unwrap();
        model.local(layers)
    };
    let error = Pipeline::new(vec![stage(&[0..2, 0..3]), stage(&[2..4, 2..4])]).unwrap_err();
    assert!(
        matches!(&error, PipelineError::Gap { layers } if *layers == [0..3, 2..4]),
        "{error}"
    );
    let one = model.local(2..4);
    let error = Pipeline::new(vec![stage(&[0..2, 0..3]), one]).unwrap_err();
    assert!(
        matches!(&error, PipelineError::Turns { turns } if *turns == [2, 1]),
        "{error}"
    );
}
