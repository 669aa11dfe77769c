//! Attention over keys and values in blocks against attention over whole sequences.

use burn::tensor::{DType, Device, FloatDType, Tensor};
use loraloom_model::{
    AttentionShape, BLOCK_TOKENS, BlockTable, BlockTables, Sequences, append_kv, paged_attention,
    self_attention,
};

use crate::decoder::{
    attention::composed_attention,
    support::{Random, assert_close_values, device, host},
};

/// Whole sequences `[tokens, heads · head_dim]`: q, k and v of each.
type Whole = Vec<[Tensor<2>; 3]>;

fn shape(lengths: &[usize], [heads, kv_heads, head_dim]: [usize; 3]) -> AttentionShape {
    AttentionShape {
        sequences: Sequences::from_lengths(lengths.iter().copied()),
        num_heads: heads,
        num_kv_heads: kv_heads,
        head_dim,
        window: None,
        score_scale: None,
        softcap: None,
    }
}

fn whole(random: &mut Random, shape: &AttentionShape, device: &Device) -> Whole {
    let widths = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads];
    let sequences = shape.sequences.iter();
    let tensors = sequences.map(|rows| {
        widths.map(|heads| random.tensor([rows.len(), heads * shape.head_dim], device))
    });
    tensors.collect()
}

fn rows(x: &Tensor<2>, rows: std::ops::Range<usize>) -> Tensor<2> {
    let width = x.dims()[1];
    x.clone().slice([rows, 0..width])
}

/// Feeds whole sequences in parts of random lengths, some of them at a time, into blocks in a random order. The caches
/// have numbers in them before. Returns the outputs of each sequence.
fn in_parts(
    whole: &Whole,
    shape: &AttentionShape,
    random: &mut Random,
    most: usize,
) -> Vec<Vec<f32>> {
    let needed: Vec<_> = whole
        .iter()
        .map(|[q, ..]| q.dims()[0].div_ceil(BLOCK_TOKENS) + random.below(2))
        .collect();
    let count: usize = needed.iter().sum::<usize>() + 1;
    let mut free: Vec<u32> = (0..count as u32).collect();
    let mut blocks: Vec<Vec<u32>> = Vec::new();
    for &needed in &needed {
        let taken = (0..needed).map(|_| free.swap_remove(random.below(free.len())));
        blocks.push(taken.collect());
    }
    let (device, dtype) = (whole[0][0].device(), whole[0][0].dtype());
    let width = shape.num_kv_heads * shape.head_dim;
    let mut caches =
        [(); 2].map(|()| Tensor::full([count * BLOCK_TOKENS, width], 1e3, (&device, dtype)));
    let mut past = vec![0; whole.len()];
    let mut outputs = vec![Vec::new(); whole.len()];
    while past
        .iter()
        .zip(whole)
        .any(|(&past, [q, ..])| past < q.dims()[0])
    {
        let parts: Vec<usize> = (past.iter().zip(whole))
            .map(|(&past, [q, ..])| (q.dims()[0] - past).min(random.below(most + 1)))
            .collect();
        let batch = AttentionShape {
            sequences: Sequences::from_lengths(parts.iter().copied()),
            ..shape.clone()
        };
        let tables = past.iter().zip(&blocks);
        let tables = tables.map(|(&past, blocks)| BlockTable {
            past,
            blocks: blocks.clone(),
        });
        let tables = BlockTables::new(tables.collect());
        assert_eq!(tables.check(&batch.sequences, count), Ok(()));
        if batch.sequences.rows() == 0 {
            continue;
        }
        let [q, k, v] = [0, 1, 2].map(|which| {
            let parts = whole.iter().zip(past.iter().zip(&parts));
            let parts = parts.map(|(all, (&past, &part))| rows(&all[which], past..past + part));
            Tensor::cat(parts.collect(), 0)
        });
        caches = append_kv(caches, [k, v], &batch.sequences, &tables);
        let out = paged_attention(q, caches.clone(), &batch, &tables);
        for ((rows_of, out_of), (past, part)) in batch
            .sequences
            .iter()
            .zip(&mut outputs)
            .zip(past.iter_mut().zip(&parts))
        {
            out_of.extend(host(rows(&out, rows_of).cast(FloatDType::F32)));
            *past += part;
        }
    }
    // Blocks of nobody are as they were.
    for block in free {
        let start = block as usize * BLOCK_TOKENS;
        for cache in &caches {
            let values = host(rows(cache, start..start + BLOCK_TOKENS).cast(FloatDType::F32));
            assert!(values.iter().all(|value| (value - 1e3).abs() < 1e-3));
        }
    }
    outputs
}

/// However a sequence comes, and whatever its neighbours are, its outputs are those of attention over the whole of it:
/// on the CPU to the last bit, and by the naive form on any device.
#[track_caller]
fn compare_paged(seed: u64, shape: &AttentionShape, most: usize) {
    let mut random = Random::new(seed);
    let lengths: Vec<_> = shape.sequences.iter().map(|rows| rows.len()).collect();
    let what = format!("seed {seed}: {lengths:?} in parts of at most {most}, {shape:?}");
    let whole = whole(&mut random, shape, &device());
    let found = in_parts(&whole, shape, &mut random, most);
    for ([q, k, v], found) in whole.into_iter().zip(found) {
        let alone = AttentionShape {
            sequences: Sequences::from_lengths([q.dims()[0]]),
            ..shape.clone()
        };
        let expected = self_attention(q.clone(), k.clone(), v.clone(), &alone);
        if device() == Device::flex() {
            let bits = |values: &[f32]| {
                values
                    .iter()
                    .map(|value| value.to_bits())
                    .collect::<Vec<_>>()
            };
            assert!(
                bits(&found) == bits(&host(expected)),
                "{what}: bits of a sequence of {}",
                q.dims()[0]
            );
        } else {
            assert_close_values(
                &format!("beside self_attention, {what}"),
                &found,
                &host(expected),
                1e-5,
            );
        }
        let expected = host(composed_attention([q, k, v], &alone));
        assert_close_values(
            &format!("beside the naive form, {what}"),
            &found,
            &expected,
            1e-5,
        );
    }
}

#[test]
fn sequences_that_come_in_parts() {
    for (lengths, most) in [
        (&[1][..], 1),
        (&[2, 3], 1),
        (&[16, 17, 15], 5),
        (&[33, 1, 70, 20], 7),
        (&[40, 40, 40], 40),
    ] {
        compare_paged(1, &shape(lengths, [4, 2, 12]), most);
        compare_paged(2, &shape(lengths, [1, 1, 64]), most);
    }
}

#[test]
fn with_windows_and_bounds() {
    for (window, softcap) in [
        (Some(1), None),
        (Some(9), None),
        (Some(40), Some(0.5)),
        (None, Some(1.0)),
    ] {
        let shape = AttentionShape {
            window,
            softcap,
            score_scale: softcap.map(|_| 0.4),
            ..shape(&[100, 21, 64], [6, 3, 16])
        };
        compare_paged(3, &shape, 30);
    }
}

/// Beyond the elements that products on the CPU sum at a time.
#[test]
fn long_sequences() {
    compare_paged(4, &shape(&[1200, 530], [2, 1, 8]), 400);
    let windowed = AttentionShape {
        window: Some(600),
        ..shape(&[1300], [2, 2, 8])
    };
    compare_paged(5, &windowed, 300);
}

#[test]
fn random_shapes() {
    for seed in 10..18 {
        let mut random = Random::new(seed);
        let head_dim = [64, 80, 128, 6][random.below(4)];
        let kv_heads = 1 + random.below(3);
        let heads = kv_heads * (1 + random.below(7));
        let count = 1 + random.below(5);
        let lengths: Vec<_> = (0..count).map(|_| 1 + random.below(90)).collect();
        let shape = AttentionShape {
            window: (random.below(2) == 0).then(|| 1 + random.below(50)),
            ..shape(&lengths, [heads, kv_heads, head_dim])
        };
        compare_paged(seed, &shape, 1 + random.below(60));
    }
}

/// A token's bits are the same beside other sequences, on a GPU too: there is no order of sums to share.
#[test]
fn neighbours_do_not_change_bits() {
    let shape = shape(&[70, 9, 130], [4, 2, 16]);
    let sequences = whole(&mut Random::new(6), &shape, &device());
    let together = in_parts(&sequences, &shape, &mut Random::new(7), 50);
    for (index, (sequence, together)) in sequences.into_iter().zip(together).enumerate() {
        let alone = in_parts(&vec![sequence], &shape, &mut Random::new(8), 3);
        assert_eq!(alone[0], together, "sequence {index}");
    }
}

#[test]
fn half_precision_is_rounded_float32() {
    for (dtype, tolerance) in [(FloatDType::F16, 4e-3), (FloatDType::BF16, 3e-2)] {
        if !device().supports_dtype(DType::from(dtype)) {
            continue;
        }
        let shape = shape(&[70, 9], [4, 2, 16]);
        let sequences = whole(&mut Random::new(9), &shape, &device());
        let rounded = |to: FloatDType| -> Whole {
            let cast =
                |all: &[Tensor<2>; 3]| all.each_ref().map(|x| x.clone().cast(dtype).cast(to));
            sequences.iter().map(cast).collect()
        };
        let found = in_parts(&rounded(dtype), &shape, &mut Random::new(1), 20);
        let expected = in_parts(&rounded(FloatDType::F32), &shape, &mut Random::new(1), 20);
        for (found, expected) in found.iter().zip(&expected) {
            assert_close_values(&format!("{dtype:?}"), found, expected, tolerance);
        }
    }
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let sequences = Sequences::from_lengths([3, 1]);
    let table = |past: usize, blocks: &[u32]| BlockTable {
        past,
        blocks: blocks.to_vec(),
    };
    let check = |tables: &[BlockTable]| BlockTables::new(tables.to_vec()).check(&sequences, 4);
    assert_eq!(check(&[table(13, &[3]), table(0, &[0])]), Ok(()));
    for (tables, expected) in [
        (vec![table(13, &[3])], "1 block tables for 2 sequences"),
        (
            vec![table(14, &[3]), table(0, &[0])],
            "17 tokens in blocks for 16",
        ),
        (
            vec![table(0, &[3]), table(0, &[])],
            "1 tokens in blocks for 0",
        ),
        (vec![table(0, &[4]), table(0, &[0])], "block 4 of 4"),
    ] {
        assert_eq!(check(&tables), Err(expected.to_owned()));
    }
}
