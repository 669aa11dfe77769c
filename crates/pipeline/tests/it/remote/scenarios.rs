//! What pipelines go through, to be compared.

use loraloom_model::{BlockTable, BlockTables, Sampled, Sampling};
use loraloom_pipeline::Pipeline;

use crate::remote::support::{Model, adapter, bits, microbatch, passes, training};

/// What a run came to, as bits.
#[derive(Debug, PartialEq)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<Vec<Vec<u32>>>,
    pub(crate) norms: Vec<Vec<u32>>,
    pub(crate) adapters: Vec<Vec<u32>>,
}

pub(crate) fn to_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub(crate) fn train(pipeline: Pipeline, model: &Model, shape: [usize; 2]) -> Trained {
    train_ahead(pipeline, model, shape, 0)
}

pub(crate) fn train_ahead(
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

/// Steps in parts, and what becomes of them when adapters and groups move.
pub(crate) fn in_parts(mut pipeline: Pipeline, model: &Model) -> Vec<Vec<u32>> {
    pipeline.reserve_groups(2).unwrap();
    for (group, seed) in [(0, 1), (0, 2), (1, 3), (1, 4)] {
        pipeline.push(group, adapter(&model.config, seed)).unwrap();
    }
    let passes = passes(pipeline.layers().len(), 2, 2, 2);
    let mut training = training(model, 2, 2);
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
}

/// Adapters that move between groups, leave and come back, evaluation, and decoding with caches.
pub(crate) fn everything(mut pipeline: Pipeline, model: &Model) -> Vec<Vec<u32>> {
    let config = &model.config;
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
        let (losses, correct) = pipeline.target_scores(group, &microbatch).unwrap();
        found.push(to_bits(&losses));
        found.push(correct.into_iter().map(u32::from).collect());
        found.push(to_bits(&pipeline.logits(group, &microbatch).unwrap()));
    }
    let mut caches = pipeline.caches(2);
    let mut next = |caches: &mut _, past, length: usize, seed: usize| {
        let mut batch = microbatch(config, seed, None);
        let segments = [0, 1].map(|slot| batchlora::Segment {
            rows: slot * length..(slot + 1) * length,
            slot,
        });
        batch.ids.truncate(2 * length);
        batch.sequences = loraloom_model::Sequences::from_lengths([length, length]);
        batch.rope_lengths = vec![past + length; 2];
        batch.segments = batchlora::Segments::new(2 * length, segments.to_vec()).unwrap();
        let blocks = [vec![1], vec![0]].map(|blocks| BlockTable { past, blocks });
        batch.cached = Some(BlockTables::new(blocks.to_vec()));
        let rows = [length - 1, 2 * length - 1];
        // The log-probabilities of all tokens.
        let sampled = vec![Sampling::default().row(&[], 0, config.vocab_size); 2];
        let next = pipeline.next_tokens(0, &batch, caches, &rows, &sampled);
        for Sampled { id, mut top, .. } in next.unwrap() {
            assert_eq!((top[0].0, top.len()), (id, config.vocab_size));
            top.sort_unstable_by_key(|(id, _)| *id);
            found.push(top.iter().map(|(_, log_prob)| log_prob.to_bits()).collect());
        }
    };
    next(&mut caches, 0, 5, 11);
    let mut other = pipeline.caches(2);
    next(&mut other, 0, 5, 11);
    next(&mut caches, 5, 1, 12);
    next(&mut caches, 6, 1, 13);
    next(&mut other, 5, 1, 14);
    drop(caches);
    next(&mut other, 6, 1, 15);
    found
}
